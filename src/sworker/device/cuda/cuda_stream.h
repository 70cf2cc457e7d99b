// A DeviceStream on the GPU: a CUDA stream that is current while work is launched.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <mutex>

#include "sworker/device/device_runtime.h"

namespace fastdecode {

// Launch, Notify and Synchronize: one thread at a time. TakeError: any.
class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(c10::cuda::CUDAStream stream) : stream_(stream) {}
  ~CudaStream() override { Synchronize(); }

  void Launch(std::function<void()> work) override;
  void Notify(std::function<void()> callback) override;
  void Synchronize() override;
  Status TakeError() override;

 private:
  void Keep(Status status);

  const c10::cuda::CUDAStream stream_;
  std::mutex mutex_;
  Status error_;  // guarded by mutex_
};

}  // namespace fastdecode
