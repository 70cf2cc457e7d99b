// What runs for each message: no allocation, no lock, no log.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/base/logging.h"
#include "common/transport/message_check.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace fastdecode {
namespace {

Status WouldBlock() { return {StatusCode::kWouldBlock, {}}; }

}  // namespace

void TcpEndpoint::CheckOwner() {
#ifndef NDEBUG
  if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
  CHECK(owner_ == std::this_thread::get_id()) << "an endpoint belongs to one thread";
#endif
}

Status TcpEndpoint::Fail(Status status) {
  dead_ = std::move(status);
  return dead_;
}

Result<SendSlot> TcpEndpoint::Acquire(Lane which) {
  CheckOwner();
  if (!dead_.ok()) return dead_;
  LaneState& lane = this->lane(which);
  lane.starved = lane.send_free.empty();
  if (lane.starved) return WouldBlock();
  int index = lane.send_free.front();
  lane.send_free.pop();
  lane.send_state[static_cast<size_t>(index)] = SlotState::kCaller;
  return SendSlot{which, index, {send_slot(lane, index), lane.slot_bytes}};
}

Status TcpEndpoint::Post(const SendSlot& slot) {
  CheckOwner();
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
  CheckOwner();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " abandoned without Acquire";
  state = SlotState::kFree;
  lane.send_free.push(slot.index);
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
    lane.send_free.push(index);
    stats_.sent_bytes += total;
    ++stats_.sent_messages;
  }
}

Status TcpEndpoint::Receive(LaneState& lane) {
  if (lane.recv_slot < 0) {
    if (lane.recv_free.empty()) return WouldBlock();
    lane.recv_slot = lane.recv_free.front();
    lane.recv_free.pop();
    lane.received = 0;
  }
  std::byte* bytes = recv_slot(lane, lane.recv_slot);
  const auto* header = reinterpret_cast<const MessageHeader*>(bytes);
  size_t total = sizeof(MessageHeader);
  if (lane.received >= sizeof(MessageHeader)) total += header->payload_bytes;
  while (lane.received < total) {
    ssize_t count = recv(lane.socket.get(), bytes + lane.received, total - lane.received, MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return WouldBlock();
      return StreamError(lane, errno);
    }
    if (count == 0) return StreamEnd(lane);
    lane.received += static_cast<size_t>(count);
    if (lane.received == sizeof(MessageHeader)) {
      Status status =
          CheckMessageHeader(*header, lane.slot_bytes, options_.incarnation, options_.peer, lane.name, "stream");
      if (!status.ok()) return status;
      total += header->payload_bytes;
    }
  }
  return OkStatus();
}

Result<RecvSlot> TcpEndpoint::Poll() {
  CheckOwner();
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
  int index = lane.recv_slot;
  lane.recv_slot = -1;
  lane.recv_state[static_cast<size_t>(index)] = SlotState::kCaller;
  ++stats_.received_messages;
  stats_.received_bytes += lane.received;
  const std::byte* bytes = recv_slot(lane, index);
  return RecvSlot{which, index, {bytes, lane.received}, clock_.NowNs(), reinterpret_cast<const MessageHeader*>(bytes)};
}

void TcpEndpoint::Release(const RecvSlot& slot) {
  CheckOwner();
  LaneState& lane = this->lane(slot.lane);
  SlotState& state = lane.recv_state[static_cast<size_t>(slot.index)];
  CHECK(state == SlotState::kCaller) << "slot " << slot.index << " released twice";
  state = SlotState::kFree;
  lane.recv_free.push(slot.index);
}

bool TcpEndpoint::PrepareWait() {
  CheckOwner();
  if (!dead_.ok() || !send_failed_.ok()) return false;
  for (int i = 0; i < kNumLanes; ++i) {
    LaneState& lane = lanes_[static_cast<size_t>(i)];
    if (lane.starved && !lane.send_free.empty()) {
      lane.starved = false;  // a slot became free since: that is news, once
      return false;
    }
    // Asking to be woken for what cannot be done now would be a busy loop.
    uint32_t interest = 0;
    if (lane.recv_slot >= 0 || !lane.recv_free.empty()) interest |= EPOLLIN;
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
