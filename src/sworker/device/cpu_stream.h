// A DeviceStream whose work runs in order on one thread of its own.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "sworker/device/device_runtime.h"

namespace fastdecode {

class CpuStream final : public DeviceStream {
 public:
  // cpu: where the thread is pinned; negative: nowhere.
  explicit CpuStream(int cpu);
  ~CpuStream() override;

  // Blocks while kCapacity launches wait; never from the stream's own work.
  void Launch(std::function<void()> work) override;
  void Notify(std::function<void()> callback) override { Launch(std::move(callback)); }
  void Synchronize() override;
  Status TakeError() override;

 private:
  static constexpr size_t kCapacity = 1024;

  void Loop(int cpu);
  void RunOne(const std::function<void()>& work);

  std::mutex mutex_;  // guards all below but thread_
  std::condition_variable not_empty_, progress_;
  std::array<std::function<void()>, kCapacity> queue_;  // a ring: launch n lies at n % kCapacity
  uint64_t launched_ = 0;
  uint64_t finished_ = 0;
  bool stop_ = false;
  Status error_;
  std::thread thread_;
};

}  // namespace fastdecode
