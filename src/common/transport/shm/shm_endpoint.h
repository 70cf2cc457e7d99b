// The transport's contract over memory that both ends have mapped (shm_layout.h).
//
// Messages are written and read in place. While both ends are awake a message is a store
// and a load: no system call. An end that finds nothing for a while marks itself asleep in
// the shared memory and sleeps on the unix socket that the two share; who then has news for
// it sends one byte. The socket's end is the peer's death, so it wakes the other end at
// once; nothing in the memory is ever locked.
//
// Of the peer's words nothing is believed: each is read once, then checked (slot, owner,
// size); headers are copied out before they are checked.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/transport/shm/shm_layout.h"
#include "common/transport/shm/shm_memory.h"
#include "common/transport/transport.h"

namespace fastdecode {

class ShmEndpoint final : public Endpoint {
 public:
  // socket: connected to the peer, nonblocking, with nothing unread. spin_us: how long
  // PrepareWait asks its owner to go on polling before it lets it sleep; 0: not at all.
  static std::unique_ptr<ShmEndpoint> Create(const EndpointOptions& options, const ShmLayout& layout, ShmSide side,
                                             ShmMemory memory, Fd socket, int spin_us,
                                             const Clock& clock = SteadyClock::Get());
  ~ShmEndpoint() override = default;

  Result<SendSlot> Acquire(Lane lane) override;
  Status Post(const SendSlot& slot) override;
  void Abandon(const SendSlot& slot) override;
  Result<RecvSlot> Poll() override;
  void Release(const RecvSlot& slot) override;
  int wait_fd() const override { return socket_.get(); }
  bool PrepareWait() override;
  const EndpointOptions& options() const override { return options_; }
  EndpointStats stats() const override { return stats_; }

  // Sleeps prepared, wake-ups sent and other looks at the socket: each a system call.
  uint64_t system_calls() const { return system_calls_; }

 private:
  enum class SlotState : uint8_t { kFree, kCaller, kPosted };

  // A place in a ring of `size` words, and the lap that a new word there has.
  struct Place {
    int index = 0;
    uint16_t lap = 1;
    void Advance(int size) {
      if (++index < size) return;
      index = 0;
      ++lap;
    }
  };

  struct LaneState {
    const char* name = "";
    size_t slot_bytes = 0;
    // We send: slots are ours until posted, and again when the peer returned them.
    int send_slots = 0;
    std::byte* send_base = nullptr;
    PostedWord* post = nullptr;
    ReturnedWord* credit = nullptr;
    Place post_at, credit_at;
    std::vector<int> send_free;  // the one used last is on top: it is warm
    std::vector<SlotState> send_state;
    bool starved = false;  // the latest Acquire found no slot
    // The peer sends.
    int recv_slots = 0;
    int recv_limit = 0;  // that we may hold at a time
    int held = 0;
    const std::byte* recv_base = nullptr;
    PostedWord* taken = nullptr;
    ReturnedWord* give_back = nullptr;
    Place take_at, give_back_at;
    std::vector<SlotState> recv_state;
    std::vector<MessageHeader> headers;  // copies, one a slot
  };

  ShmEndpoint(const EndpointOptions& options, ShmMemory memory, Fd socket, int spin_us, const Clock& clock);
  void SetUp(const ShmLayout& layout, ShmSide side);

  LaneState& lane(Lane which) { return lanes_[static_cast<size_t>(which)]; }
  Status CollectCredit(LaneState& lane);
  bool HasMessage(const LaneState& lane) const;
  Result<bool> HasNews();
  Status Take(LaneState& lane, int* index, size_t* bytes);
  Status CheckPosted(const LaneState& lane, uint32_t slot, size_t bytes) const;
  void WakePeer(SleepState least);
  void WakeUp();
  void LookAtSocket();
  bool MaySpin();
  void Busy(int64_t now_ns);
  Status Fail(Status status);

  const EndpointOptions options_;
  const ShmMemory memory_;
  const Fd socket_;
  const Clock& clock_;
  std::array<LaneState, kNumLanes> lanes_;
  Sleeper* own_ = nullptr;
  Sleeper* peer_ = nullptr;
  int first_lane_ = 0;  // that Poll looks at first
  EndpointStats stats_;
  uint64_t system_calls_ = 0;
  Status dead_;
  bool peer_closed_ = false;
  bool asleep_ = false;      // PrepareWait said that the owner may sleep
  uint32_t idle_polls_ = 0;  // in a row
  uint32_t quiet_wakes_ = 0;

  // Spinning pays while the peer answers within its time; the budget follows what was seen.
  const int64_t spin_ns_;
  int64_t spin_budget_ns_;
  int64_t idle_since_ns_ = 0;  // 0: the latest Poll found a message
};

}  // namespace fastdecode
