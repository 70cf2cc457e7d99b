// What the engine's state machines share.
#pragma once

#include <sys/eventfd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "sworker/attention/backend.h"
#include "sworker/device/device_runtime.h"
#include "sworker/engine/timeline.h"
#include "sworker/model/model.h"
#include "sworker/request.h"

namespace fastdecode {

// A sequence while the engine knows it.
struct EngineSequence {
  std::shared_ptr<const Request> request;
  int rworker = 0;
  int64_t position = 0;  // tokens cached so far; the next row's position
  int32_t token = 0;     // the newest one, not yet cached: the prompt's last, then the last sampled
  uint64_t sampled = 0;  // tokens sampled so far
  bool overflow_warned = false;
};

// Who launched a piece of work: what its end moves forward.
struct StageId {
  enum class Owner : uint8_t { kPass, kPrefill, kPush };
  Owner owner = Owner::kPass;
  int index = 0;  // mini-batch, or ring position of a push
};
struct StageEnd {
  StageId id;
  StageTimes times;
};

// Ends of work, from the device's threads to the engine's; wakes the latter.
class CompletionQueue {
 public:
  CompletionQueue() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { ends_.reserve(64); }
  void Push(const StageEnd& end) {
    {
      std::lock_guard lock(mutex_);
      ends_.push_back(end);
    }
    Wake();
  }
  void Wake() { [[maybe_unused]] int failed = ::eventfd_write(wake_.get(), 1); }
  void Take(std::vector<StageEnd>* ends) {
    ends->clear();
    std::lock_guard lock(mutex_);
    ends->swap(ends_);
  }
  int wake_fd() const { return wake_.get(); }
  void ClearWake() {
    eventfd_t value;
    [[maybe_unused]] int failed = ::eventfd_read(wake_.get(), &value);
  }

 private:
  Fd wake_;
  std::mutex mutex_;
  std::vector<StageEnd> ends_;
};

struct EngineContext {
  const Model& model;
  DeviceRuntime& device;
  DeviceStream& stream;
  AttentionBackend& attention;
  CompletionQueue& completions;
};

// Launches copy-in, compute and copy-out as one stage with marks between them.
// `times` lives until the completion is handled; each of the three may be empty.
void LaunchStage(EngineContext& context, StageId id, StageTimes* times, std::function<void()> copy_in,
                 std::function<void()> compute, std::function<void()> copy_out);

// f16 rows of host memory as a tensor [rows, width].
at::Tensor HostRowsTensor(std::byte* data, int64_t rows, int64_t width);

// Host memory that the device copies from and to without a detour, as a 1-d tensor.
struct HostBuffer {
  HostBuffer(DeviceRuntime& device, int64_t elements, at::ScalarType type);
  std::shared_ptr<std::byte[]> memory;
  at::Tensor tensor;
};

}  // namespace fastdecode
