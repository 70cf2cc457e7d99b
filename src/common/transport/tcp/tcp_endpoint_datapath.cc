// What runs for each message: no allocation, no lock, no log.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/base/logging.h"
#include "common/transport/message_check.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace fastdecode {
namespace {

// Above this a second recv costs nothing beside the bytes.
constexpr size_t kMaxGuess = 4096;

Status WouldBlock() { return {StatusCode::kWouldBlock, {}}; }

}  // namespace

Status TcpEndpoint::Fail(Status status) {
  dead_ = std::move(status);
  return dead_;
}

Result<SendSlot> TcpEndpoint::Acquire(Lane which) {
  owner_.Check();
  if (!dead_.ok()) return dead_;
  LaneState& lane = this->lane(which);
  lane.starved = lane.send_free.empty();
  if (lane.starved) return WouldBlock();
  int index = lane.send_free.back();
  lane.send_free.pop_back();
  lane.send_state[static_cast<size_t>(index)] = SlotState::kCaller;
  return SendSlot{which, index, {send_slot(lane, index), lane.slot_bytes}};
}

Status TcpEndpoint::Post(const SendSlot& slot) {
  owner_.Check();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " posted without Acquire";
  if (!dead_.ok()) return dead_;
  MessageHeader* header = slot.header();
  CHECK_LE(header->payload_bytes, lane.slot_bytes - sizeof(MessageHeader));
  header->magic = kWireMagic;
  header->version = kWireVersion;
  header->incarnation = options_.incarnation;
  state = SlotState::kQueued;
  bool idle = lane.send_pending.empty();
  lane.send_pending.push(slot.index);
  if (idle) Flush(lane);
  return OkStatus();
}

void TcpEndpoint::Abandon(const SendSlot& slot) {
  owner_.Check();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " abandoned without Acquire";
  state = SlotState::kFree;
  lane.send_free.push_back(slot.index);
}

void TcpEndpoint::Flush(LaneState& lane) {
  while (!lane.send_pending.empty() && send_failed_.ok()) {
    int index = lane.send_pending.front();
    const std::byte* bytes = send_slot(lane, index);
    size_t total = sizeof(MessageHeader) + reinterpret_cast<const MessageHeader*>(bytes)->payload_bytes;
    ssize_t count = send(lane.socket.get(), bytes + lane.sent, total - lane.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) send_failed_ = StreamError(lane, errno);
      return;
    }
    lane.sent += static_cast<size_t>(count);
    if (lane.sent < total) continue;
    lane.sent = 0;
    lane.send_pending.pop();
    lane.send_state[static_cast<size_t>(index)] = SlotState::kFree;
    lane.send_free.push_back(index);
    stats_.sent_bytes += total;
    ++stats_.sent_messages;
  }
}

Status TcpEndpoint::Receive(LaneState& lane) {
  if (lane.recv_slot < 0) {
    if (lane.recv_free.empty()) return WouldBlock();
    lane.recv_slot = lane.recv_free.back();
    lane.recv_free.pop_back();
    lane.received = 0;
  }
  std::byte* bytes = recv_slot(lane, lane.recv_slot);
  const auto* header = reinterpret_cast<const MessageHeader*>(bytes);
  bool checked = false;
  while (true) {
    if (!checked && lane.received >= sizeof(MessageHeader)) {
      FD_RETURN_IF_ERROR(
          CheckMessageHeader(*header, lane.slot_bytes, options_.incarnation, options_.peer, lane.name, "stream"));
      checked = true;
    }
    const size_t total = sizeof(MessageHeader) + (checked ? header->payload_bytes : 0);
    if (checked && lane.received >= total) {
      return FilledOf(lane) == Filled::kWhole ? OkStatus() : WouldBlock();
    }
    // What may come too much needs a slot to go to.
    const size_t guess = checked || lane.recv_free.empty() ? 0 : lane.guess;
    ssize_t count = recv(lane.socket.get(), bytes + lane.received, total + guess - lane.received, MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return WouldBlock();
      return StreamError(lane, errno);
    }
    if (count == 0) return StreamEnd(lane);
    lane.received += static_cast<size_t>(count);
  }
}

// Whether the slot being filled holds a whole message, as it may when that came with the
// one before it; then it can be taken if there is a slot for what came after it, too.
TcpEndpoint::Filled TcpEndpoint::FilledOf(LaneState& lane) {
  if (lane.recv_slot < 0 || lane.received < sizeof(MessageHeader)) return Filled::kPart;
  const auto* header = reinterpret_cast<const MessageHeader*>(recv_slot(lane, lane.recv_slot));
  const size_t size = sizeof(MessageHeader) + header->payload_bytes;
  if (lane.received < size) return Filled::kPart;
  return lane.received > size && lane.recv_free.empty() ? Filled::kNoRoom : Filled::kWhole;
}

Result<RecvSlot> TcpEndpoint::Poll() {
  owner_.Check();
  if (!dead_.ok()) return dead_;
  for (LaneState& lane : lanes_) Flush(lane);
  Status ended;
  for (int i = 0; i < kNumLanes; ++i) {
    int which = (first_lane_ + i) % kNumLanes;
    LaneState& lane = lanes_[static_cast<size_t>(which)];
    Status status = Receive(lane);
    if (status.ok()) {
      first_lane_ = (which + 1) % kNumLanes;  // the other lane goes first next time: neither starves
      return TakeMessage(lane, static_cast<Lane>(which));
    }
    if (status.code() == StatusCode::kWouldBlock) continue;
    if (status.code() == StatusCode::kDataLoss) return Fail(std::move(status));
    ended = std::move(status);  // the peer's last words may wait in the other lane
  }
  if (!ended.ok()) return Fail(std::move(ended));
  if (!send_failed_.ok()) return Fail(send_failed_);
  return WouldBlock();
}

RecvSlot TcpEndpoint::TakeMessage(LaneState& lane, Lane which) {
  const int index = lane.recv_slot;
  const std::byte* bytes = recv_slot(lane, index);
  const auto* header = reinterpret_cast<const MessageHeader*>(bytes);
  const size_t size = sizeof(MessageHeader) + header->payload_bytes;
  const size_t excess = lane.received - size;
  lane.guess = header->payload_bytes <= kMaxGuess ? header->payload_bytes : 0;
  lane.recv_slot = -1;
  if (excess > 0) {
    lane.recv_slot = lane.recv_free.back();
    lane.recv_free.pop_back();
    std::memcpy(recv_slot(lane, lane.recv_slot), bytes + size, excess);
    lane.received = excess;
  }
  lane.recv_state[static_cast<size_t>(index)] = SlotState::kCaller;
  ++stats_.received_messages;
  stats_.received_bytes += size;
  return RecvSlot{which, index, {bytes, size}, clock_.NowNs(), header};
}

void TcpEndpoint::Release(const RecvSlot& slot) {
  owner_.Check();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.recv_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " released twice";
  state = SlotState::kFree;
  lane.recv_free.push_back(slot.index);
}

bool TcpEndpoint::PrepareWait() {
  owner_.Check();
  if (!dead_.ok() || !send_failed_.ok()) return false;
  for (int i = 0; i < kNumLanes; ++i) {
    LaneState& lane = lanes_[static_cast<size_t>(i)];
    if (lane.starved && !lane.send_free.empty()) {
      lane.starved = false;  // a slot became free since: that is news, once
      return false;
    }
    const Filled filled = FilledOf(lane);
    if (filled == Filled::kWhole) return false;
    // Asking to be woken for what cannot be done now would be a busy loop.
    uint32_t interest = 0;
    const bool room = lane.recv_slot >= 0 ? filled == Filled::kPart : !lane.recv_free.empty();
    if (room) interest |= EPOLLIN;
    if (!lane.send_pending.empty()) interest |= EPOLLOUT;
    if (interest == lane.interest) continue;
    epoll_event event{};
    event.events = interest;
    event.data.u32 = static_cast<uint32_t>(i);
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, lane.socket.get(), &event) != 0) {
      send_failed_ = StreamError(lane, errno);
      return false;
    }
    lane.interest = interest;
  }
  return true;
}

}  // namespace fastdecode
