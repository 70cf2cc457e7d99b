// The transport's contract over two TCP streams, one a lane, so that prefill's bulk
// never stands in front of a decode row.
//
// Header and payload lie together in a slot, so a message goes out with one send from there,
// and comes in by recv into a slot directly. How long it is only its header says; so a small
// one is first taken to be as long as the one before it in its lane, which is one recv where
// that is right. What came too much is the beginning of the next one, and moves to its slot.
// Memory is handed in; send slots of a lane lie before its receive slots, the decode
// lane before bulk.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/transport/slot_queue.h"
#include "common/transport/transport.h"

namespace fastdecode {

class TcpEndpoint final : public Endpoint {
 public:
  // Sockets are connected, nonblocking and past their handshake. memory: 64-byte aligned,
  // EndpointMemoryBytes(options) long; kept until the endpoint is destroyed.
  static Result<std::unique_ptr<TcpEndpoint>> Create(const EndpointOptions& options, std::array<Fd, kNumLanes> sockets,
                                                     std::shared_ptr<std::byte[]> memory,
                                                     const Clock& clock = SteadyClock::Get());
  ~TcpEndpoint() override = default;

  Result<SendSlot> Acquire(Lane lane) override;
  Status Post(const SendSlot& slot) override;
  void Abandon(const SendSlot& slot) override;
  Result<RecvSlot> Poll() override;
  void Release(const RecvSlot& slot) override;
  int wait_fd() const override { return epoll_.get(); }
  bool PrepareWait() override;
  const EndpointOptions& options() const override { return options_; }
  EndpointStats stats() const override { return stats_; }

 private:
  enum class SlotState : uint8_t { kFree, kCaller, kQueued };

  enum class Filled : uint8_t { kPart, kWhole, kNoRoom };

  struct LaneState {
    const char* name = "";
    Fd socket;
    size_t slot_bytes = 0;
    std::byte* send_base = nullptr;
    std::byte* recv_base = nullptr;
    std::vector<int> send_free;  // the one used last is on top: it is warm
    SlotQueue send_pending;
    std::vector<int> recv_free;
    std::vector<SlotState> send_state;
    std::vector<SlotState> recv_state;
    size_t sent = 0;        // bytes of the pending front that are gone
    int recv_slot = -1;     // being filled
    size_t received = 0;    // bytes in it
    size_t guess = 0;       // payload that the next message is taken to have
    uint32_t interest = 0;  // epoll events asked for
    bool starved = false;   // the latest Acquire found no slot
  };

  TcpEndpoint(const EndpointOptions& options, std::shared_ptr<std::byte[]> memory, const Clock& clock);
  Status SetUpLane(int lane, Fd socket, std::byte* base);

  LaneState& lane(Lane which) { return lanes_[static_cast<size_t>(which)]; }
  std::byte* send_slot(LaneState& lane, int index) {
    return lane.send_base + lane.slot_bytes * static_cast<size_t>(index);
  }
  std::byte* recv_slot(LaneState& lane, int index) {
    return lane.recv_base + lane.slot_bytes * static_cast<size_t>(index);
  }
  void Flush(LaneState& lane);
  Status Receive(LaneState& lane);  // ok: lane.recv_slot holds a whole message
  RecvSlot TakeMessage(LaneState& lane, Lane which);
  Filled FilledOf(LaneState& lane);
  Status Fail(Status status);
  Status StreamError(const LaneState& lane, int error) const;
  Status StreamEnd(const LaneState& lane) const;

  const EndpointOptions options_;
  const std::shared_ptr<std::byte[]> memory_;
  const Clock& clock_;
  Fd epoll_;
  std::array<LaneState, kNumLanes> lanes_;
  int first_lane_ = 0;  // that Poll looks at first
  EndpointStats stats_;
  Status dead_;
  // A failed send does not end the endpoint by itself: the peer's last words may still
  // wait to be read. Poll reports it when there is nothing more.
  Status send_failed_;
};

}  // namespace fastdecode
