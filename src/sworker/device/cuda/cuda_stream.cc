#include "sworker/device/cuda/cuda_stream.h"

#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <utility>

#include "sworker/device/torch_status.h"

namespace fastdecode {
namespace {

// Runs on a thread of CUDA's, where no CUDA call is allowed.
void RunCallback(void* argument) {
  const std::unique_ptr<std::function<void()>> callback(static_cast<std::function<void()>*>(argument));
  (*callback)();
}

}  // namespace

void CudaStream::Keep(Status status) {
  if (status.ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.ok()) error_ = std::move(status);
}

void CudaStream::Launch(std::function<void()> work) {
  Keep(RunTorch([&] {
    c10::InferenceMode inference;
    c10::cuda::CUDAStreamGuard guard(stream_);
    work();
  }));
}

void CudaStream::Notify(std::function<void()> callback) {
  auto owned = std::make_unique<std::function<void()>>(std::move(callback));
  const Status status = RunTorch([&] {
    c10::cuda::CUDAGuard guard(stream_.device());
    C10_CUDA_CHECK(cudaLaunchHostFunc(stream_.stream(), RunCallback, owned.get()));
  });
  if (status.ok()) {
    static_cast<void>(owned.release());  // RunCallback's now.
    return;
  }
  // The device is broken. Whoever waits for the callback still hears of it, and finds the
  // reason with TakeError.
  Keep(status);
  (*owned)();
}

void CudaStream::Synchronize() {
  Keep(RunTorch([&] { stream_.synchronize(); }));
}

Status CudaStream::TakeError() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(error_, Status());
}

}  // namespace fastdecode
