// The plugin's entry point, and CUDA's DeviceRuntime.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "common/base/logging.h"
#include "sworker/device/cuda/cuda_stream.h"
#include "sworker/device/device_runtime.h"
#include "sworker/device/torch_status.h"

namespace fastdecode {
namespace {

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime(int index, const cudaDeviceProp& properties)
      : device_(at::kCUDA, static_cast<c10::DeviceIndex>(index)),
        description_(device_.str() + " " + properties.name + " " + std::to_string(properties.totalGlobalMem >> 30) +
                     " GiB") {}

  at::Device device() const override { return device_; }
  std::string description() const override { return description_; }

  std::shared_ptr<std::byte[]> AllocatePinned(size_t bytes) override {
    c10::cuda::CUDAGuard guard(device_);
    void* memory = nullptr;  // page-aligned, as cudaHostAlloc gives it
    bytes = std::max<size_t>(bytes, 1);
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // told here; else the next call would say it again
      LOG(WARNING) << "no " << bytes << " bytes of pinned memory: " << cudaGetErrorString(error);
      return nullptr;
    }
    std::memset(memory, 0, bytes);
    return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
  }

  std::unique_ptr<DeviceStream> MakeStream() override {
    return std::make_unique<CudaStream>(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index()));
  }

  int num_shards() const override { return 1; }
  void ParallelShards(const std::function<void(int shard)>& work) override { work(0); }

 private:
  const at::Device device_;
  const std::string description_;
};

// nullptr, with the reason in *error.
DeviceRuntime* MakeCudaRuntime(int index, std::string* error) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    *error = "no NVIDIA driver on this host, or one older than CUDA " + std::to_string(CUDART_VERSION / 1000);
    return nullptr;
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    *error = "no NVIDIA GPU on this host, or none that this process may use";
    return nullptr;
  }
  cudaDeviceProp properties{};
  if (status == cudaSuccess && index >= count) {
    *error = "this host has " + std::to_string(count) + " GPUs, numbered from 0";
    return nullptr;
  }
  const cudaError_t found = status != cudaSuccess ? status : cudaGetDeviceProperties(&properties, index);
  if (found != cudaSuccess) {
    *error = std::string("the NVIDIA driver refuses: ") + cudaGetErrorString(found);
    return nullptr;
  }
  return new CudaRuntime(index, properties);
}

}  // namespace
}  // namespace fastdecode

extern "C" [[gnu::visibility("default")]] fastdecode::DeviceRuntime* fastdecode_make_cuda_runtime(int abi, int index,
                                                                                                  std::string* error) {
  if (abi != fastdecode::kDeviceRuntimeAbi) {
    *error = "libfastdecode_cuda.so is of another build: install both anew";
    return nullptr;
  }
  fastdecode::DeviceRuntime* runtime = nullptr;
  const fastdecode::Status status = fastdecode::RunTorch([&] { runtime = fastdecode::MakeCudaRuntime(index, error); });
  if (!status.ok()) *error = status.message();
  return runtime;
}
