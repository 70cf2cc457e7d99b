// What runs for each message: no allocation, no lock, no log; a system call only to sleep
// and to wake a peer that sleeps.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/logging.h"
#include "common/transport/message_check.h"
#include "common/transport/shm/shm_endpoint.h"

namespace fastdecode {
namespace {

// An owner that only polls and never prepares to sleep still learns of the peer's end.
constexpr uint32_t kPollsBetweenLooks = 1 << 16;
// Wake-ups without a byte, in a row, after which the socket is looked at all the same: it
// may have been its end that woke us.
constexpr uint32_t kQuietWakes = 8;

Status WouldBlock() { return {StatusCode::kWouldBlock, {}}; }

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Status ShmEndpoint::Fail(Status status) {
  dead_ = std::move(status);
  return dead_;
}

Status ShmEndpoint::CollectCredit(LaneState& lane) {
  while (true) {
    const uint32_t word = lane.credit[lane.credit_at.index].load(std::memory_order_seq_cst);
    if (static_cast<uint16_t>(word) != lane.credit_at.lap) return OkStatus();
    const uint32_t slot = word >> 16;
    if (slot >= static_cast<uint32_t>(lane.send_slots) || lane.send_state[slot] != SlotState::kPosted) {
      return DataLoss(options_.peer + ": " + lane.name + " ring: it returns slot " + std::to_string(slot) +
                      ", which it does not have");
    }
    lane.credit_at.Advance(lane.send_slots);
    lane.send_state[slot] = SlotState::kFree;
    lane.send_free.push_back(static_cast<int>(slot));
  }
}

Result<SendSlot> ShmEndpoint::Acquire(Lane which) {
  owner_.Check();
  if (!dead_.ok()) return dead_;
  LaneState& lane = this->lane(which);
  if (Status status = CollectCredit(lane); !status.ok()) return Fail(std::move(status));
  lane.starved = lane.send_free.empty();
  if (lane.starved) return WouldBlock();
  const int index = lane.send_free.back();
  lane.send_free.pop_back();
  lane.send_state[static_cast<size_t>(index)] = SlotState::kCaller;
  return SendSlot{which, index, {lane.send_base + lane.slot_bytes * static_cast<size_t>(index), lane.slot_bytes}};
}

Status ShmEndpoint::Post(const SendSlot& slot) {
  owner_.Check();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " posted without Acquire";
  if (!dead_.ok()) return dead_;
  MessageHeader* header = slot.header();
  header->magic = kWireMagic;
  header->version = kWireVersion;
  header->incarnation = options_.incarnation;
  // Read once: the peer could change it. Beyond the slot it is our caller's fault or his.
  const size_t bytes = sizeof(MessageHeader) + static_cast<const volatile MessageHeader*>(header)->payload_bytes;
  if (bytes > lane.slot_bytes) {
    return Fail(Internal(options_.peer + ": " + lane.name + " ring: a message of " + std::to_string(bytes) +
                         " bytes is to be sent, a slot holds " + std::to_string(lane.slot_bytes)));
  }
  state = SlotState::kPosted;
  lane.post[lane.post_at.index].store(
      PackPosted(static_cast<uint32_t>(slot.index), static_cast<uint32_t>(bytes), lane.post_at.lap),
      std::memory_order_seq_cst);
  lane.post_at.Advance(lane.send_slots);
  stats_.sent_bytes += bytes;
  ++stats_.sent_messages;
  WakePeer(SleepState::kForMessages);
  return OkStatus();
}

void ShmEndpoint::Abandon(const SendSlot& slot) {
  owner_.Check();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " abandoned without Acquire";
  state = SlotState::kFree;
  lane.send_free.push_back(slot.index);
}

// Sequentially consistent, like the stores before it and PrepareWait's: either we see that
// the peer sleeps, or it sees what we stored.
void ShmEndpoint::WakePeer(SleepState least) {
  if (peer_->state.load(std::memory_order_seq_cst) < static_cast<uint32_t>(least)) return;
  constexpr auto kAwake = static_cast<uint32_t>(SleepState::kAwake);
  if (peer_->state.exchange(kAwake, std::memory_order_seq_cst) == kAwake) return;
  const char byte = 1;
  ++system_calls_;
  // A full socket wakes it as well, and a closed one is Poll's to find.
  (void)send(socket_.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool ShmEndpoint::HasMessage(const LaneState& lane) const {
  if (lane.held == lane.recv_limit) return false;
  const uint64_t word = lane.taken[lane.take_at.index].load(std::memory_order_seq_cst);
  return static_cast<uint16_t>(word) == lane.take_at.lap;
}

Status ShmEndpoint::Take(LaneState& lane, int* index, size_t* bytes) {
  if (lane.held == lane.recv_limit) return WouldBlock();
  const uint64_t word = lane.taken[lane.take_at.index].load(std::memory_order_acquire);
  if (static_cast<uint16_t>(word) != lane.take_at.lap) return WouldBlock();
  const auto slot = static_cast<uint32_t>(word >> 16 & 0xffff);
  *bytes = word >> 32;
  if (Status status = CheckPosted(lane, slot, *bytes); !status.ok()) return status;
  MessageHeader& header = lane.headers[slot];
  std::memcpy(&header, lane.recv_base + lane.slot_bytes * slot, sizeof(header));
  Status status = CheckMessageHeader(header, lane.slot_bytes, options_.incarnation, options_.peer, lane.name, "ring");
  if (!status.ok()) return status;
  if (*bytes != sizeof(header) + header.payload_bytes) {
    return DataLoss(options_.peer + ": " + lane.name + " ring: a message was cut: " + std::to_string(*bytes) + " of " +
                    std::to_string(sizeof(header) + header.payload_bytes) + " bytes came");
  }
  lane.take_at.Advance(lane.recv_slots);
  lane.recv_state[slot] = SlotState::kCaller;
  ++lane.held;
  *index = static_cast<int>(slot);
  return OkStatus();
}

Result<RecvSlot> ShmEndpoint::Poll() {
  owner_.Check();
  if (!dead_.ok()) return dead_;
  if (asleep_) WakeUp();
  for (int i = 0; i < kNumLanes; ++i) {
    const int which = (first_lane_ + i) % kNumLanes;
    LaneState& lane = lanes_[static_cast<size_t>(which)];
    int index = -1;
    size_t bytes = 0;
    Status status = Take(lane, &index, &bytes);
    if (status.code() == StatusCode::kWouldBlock) continue;
    if (!status.ok()) return Fail(std::move(status));
    first_lane_ = (which + 1) % kNumLanes;  // the other lane goes first next time: neither starves
    ++stats_.received_messages;
    stats_.received_bytes += bytes;
    const int64_t now_ns = clock_.NowNs();
    Busy(now_ns);
    return RecvSlot{static_cast<Lane>(which),
                    index,
                    {lane.recv_base + lane.slot_bytes * static_cast<size_t>(index), bytes},
                    now_ns,
                    &lane.headers[static_cast<size_t>(index)]};
  }
  // The rings were looked at after the socket: nothing that was posted before the end is lost.
  const bool held_back =
      std::any_of(lanes_.begin(), lanes_.end(), [](const LaneState& lane) { return lane.held == lane.recv_limit; });
  if (peer_closed_ && !held_back) return Fail(Unavailable(options_.peer + " closed the shared memory's socket"));
  if (++idle_polls_ % kPollsBetweenLooks == 0) LookAtSocket();
  return WouldBlock();
}

void ShmEndpoint::Release(const RecvSlot& slot) {
  owner_.Check();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.recv_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " released twice";
  state = SlotState::kFree;
  --lane.held;
  lane.give_back[lane.give_back_at.index].store(PackReturned(static_cast<uint32_t>(slot.index), lane.give_back_at.lap),
                                                std::memory_order_seq_cst);
  lane.give_back_at.Advance(lane.recv_slots);
  WakePeer(SleepState::kForMessagesOrCredit);
}

void ShmEndpoint::LookAtSocket() {
  char bytes[64];  // more of them wake the owner again
  ++system_calls_;
  const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count == 0) peer_closed_ = true;
  if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) peer_closed_ = true;
}

void ShmEndpoint::WakeUp() {
  asleep_ = false;
  constexpr auto kAwake = static_cast<uint32_t>(SleepState::kAwake);
  const bool byte_came = own_->state.exchange(kAwake, std::memory_order_seq_cst) == kAwake;
  // An owner of many endpoints wakes for one of them; the others need no system call.
  quiet_wakes_ = byte_came ? 0 : quiet_wakes_ + 1;
  if (byte_came || quiet_wakes_ % kQuietWakes == 0) LookAtSocket();
}

// A message came: from how long that took follows whether spinning pays.
void ShmEndpoint::Busy(int64_t now_ns) {
  idle_polls_ = 0;
  if (idle_since_ns_ == 0) return;
  const int64_t waited_ns = now_ns - idle_since_ns_;
  idle_since_ns_ = 0;
  spin_budget_ns_ = waited_ns <= 2 * spin_ns_ ? spin_ns_ : std::max(spin_budget_ns_ / 2, spin_ns_ / 16);
}

bool ShmEndpoint::MaySpin() {
  if (spin_ns_ == 0) return false;
  const int64_t now_ns = clock_.NowNs();
  if (idle_since_ns_ == 0) idle_since_ns_ = now_ns;
  if (now_ns - idle_since_ns_ >= spin_budget_ns_) return false;
  Pause();
  return true;
}

// Also takes the credit that an Acquire was refused for lack of: that is news once.
Result<bool> ShmEndpoint::HasNews() {
  bool news = false;
  for (LaneState& lane : lanes_) {
    news = news || HasMessage(lane);
    if (!lane.starved) continue;
    FD_RETURN_IF_ERROR(CollectCredit(lane));
    lane.starved = lane.send_free.empty();
    news = news || !lane.starved;
  }
  return news;
}

bool ShmEndpoint::PrepareWait() {
  owner_.Check();
  if (!dead_.ok() || MaySpin()) return false;
  const bool starved = std::any_of(lanes_.begin(), lanes_.end(), [](const LaneState& lane) { return lane.starved; });
  const SleepState state = starved ? SleepState::kForMessagesOrCredit : SleepState::kForMessages;
  own_->state.store(static_cast<uint32_t>(state), std::memory_order_seq_cst);
  asleep_ = true;
  const Result<bool> news = HasNews();
  if (news.ok() && !*news) return true;
  if (!news.ok()) (void)Fail(news.status());
  WakeUp();
  return false;
}

}  // namespace fastdecode
