// What the S-worker asks of a device. The CPU's is linked in; CUDA's lies in the
// plugin libfastdecode_cuda.so, opened only when the config names cuda.
//
// A stream runs work in order and asynchronously to the thread that launches it:
// on the CPU in a thread of the stream's own (with a pinned pool that splits weight
// rows), on CUDA on the GPU. The engine sees no difference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;  // Waits for what was launched.
  // Runs `work` after everything launched before. CPU: on the stream's thread, later.
  // CUDA: on the calling thread, now, with the stream current; only the kernels are
  // asynchronous, so `work` must not wait for results on the host.
  // What `work` throws is kept and returned by the next TakeError.
  virtual void Launch(std::function<void()> work) = 0;
  // Calls `callback` when everything launched before is done. It runs on a thread of
  // the device's: short, no tensors, no CUDA calls.
  virtual void Notify(std::function<void()> callback) = 0;
  virtual void Synchronize() = 0;
  virtual Status TakeError() = 0;  // The first failure since the last call, or ok. Any thread.
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual at::Device device() const = 0;
  virtual std::string description() const = 0;  // "cpu, 2 threads, AMX bf16", "cuda:0 NVIDIA A10 24 GB"
  // Host memory that the device copies from without a detour, 4096-byte aligned, zeroed;
  // freed with the last copy of the pointer. Null where there is none.
  virtual std::shared_ptr<std::byte[]> AllocatePinned(size_t bytes) = 0;
  virtual std::unique_ptr<DeviceStream> MakeStream() = 0;

  // Splits [0, shards) over the compute threads; called from within a stream's work.
  // CUDA: one shard. Shard i always runs on thread i.
  virtual int num_shards() const = 0;
  virtual void ParallelShards(const std::function<void(int shard)>& work) = 0;
};

// threads: compute threads, pinned one a CPU where this process may use that many (else
// unpinned, with a log line). pin false: other processes want the same CPUs; neither pins nor spins.
std::unique_ptr<DeviceRuntime> MakeCpuRuntime(int threads, bool pin = true);

// "cpu" or "cuda:N". Opening the plugin must come before any other question about CUDA
// to libtorch, which remembers its first answer.
Result<std::unique_ptr<DeviceRuntime>> MakeDeviceRuntime(const std::string& device, int threads, bool pin = true);

// The plugin's only symbol, and the number that a change of this header raises.
inline constexpr int kDeviceRuntimeAbi = 1;
inline constexpr const char* kDeviceRuntimeEntry = "fastdecode_make_cuda_runtime";
using DeviceRuntimeEntry = DeviceRuntime* (*)(int abi, int device_index, std::string* error);

}  // namespace fastdecode
