// What runs for each message: no allocation, no lock of ours, no log.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/logging.h"
#include "common/transport/message_check.h"
#include "common/transport/verbs/verbs_endpoint.h"
#include "common/transport/verbs/verbs_errors.h"

namespace fastdecode {
namespace {

Status WouldBlock() { return {StatusCode::kWouldBlock, {}}; }

size_t MessageBytes(const std::byte* slot) {
  return sizeof(MessageHeader) + reinterpret_cast<const MessageHeader*>(slot)->payload_bytes;
}

}  // namespace

void VerbsEndpoint::Break(Status status) {
  if (state_ == State::kDead || !failure_.ok()) return;
  failure_ = std::move(status);
  state_ = State::kBroken;
}

Result<SendSlot> VerbsEndpoint::Acquire(Lane which) {
  owner_.Check();
  if (state_ == State::kDead) return failure_;
  VerbsLane& lane = this->lane(which);
  lane.starved = lane.send_free.empty();
  if (lane.starved) {
    Nudge(lane);
    return WouldBlock();
  }
  const int index = lane.send_free.pop();
  lane.send_state[static_cast<size_t>(index)] = VerbsLane::SendState::kCaller;
  return SendSlot{which, index, {lane.send_slot(index), lane.slot_bytes}};
}

Status VerbsEndpoint::Post(const SendSlot& slot) {
  owner_.Check();
  VerbsLane& lane = this->lane(slot.lane);
  VerbsLane::SendState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == VerbsLane::SendState::kCaller) << "slot " << slot.index << " posted without Acquire";
  if (state_ == State::kDead) return failure_;
  MessageHeader* header = slot.header();
  CHECK_LE(header->payload_bytes, lane.slot_bytes - sizeof(MessageHeader));
  header->magic = kWireMagic;
  header->version = kWireVersion;
  header->incarnation = options_.incarnation;
  state = VerbsLane::SendState::kPending;
  lane.pending.push(slot.index);
  FlushPending(lane);
  return OkStatus();
}

void VerbsEndpoint::Abandon(const SendSlot& slot) {
  owner_.Check();
  VerbsLane& lane = this->lane(slot.lane);
  VerbsLane::SendState& state = lane.send_state[static_cast<size_t>(slot.index)];
  CHECK(state == VerbsLane::SendState::kCaller) << "slot " << slot.index << " abandoned without Acquire";
  state = VerbsLane::SendState::kFree;
  lane.send_free.push(slot.index);
}

void VerbsEndpoint::Push() {
  for (VerbsLane& lane : lanes_) {
    FlushPending(lane);
    while (lane.OwesUrgently() && lane.room() > 0 && state_ == State::kConnected) SendCredit(lane);
    Nudge(lane);
  }
}

// All pending messages that have a credit, with one doorbell a batch.
void VerbsEndpoint::FlushPending(VerbsLane& lane) {
  const int capacity = static_cast<int>(requests_.size());
  while (state_ == State::kConnected && !lane.pending.empty() && !lane.credits.empty()) {
    int count = 0;
    while (!lane.pending.empty() && !lane.credits.empty()) {
      const size_t bytes = MessageBytes(lane.send_slot(lane.pending.front()));
      const auto writes = static_cast<int>((bytes + lane.max_write - 1) / lane.max_write);
      if (count + writes > capacity || lane.room() < static_cast<uint64_t>(writes)) break;
      count = AddMessage(lane, lane.pending.pop(), count);
    }
    if (count == 0) return;
    PostRequests(lane, count);
  }
}

// Appends the writes of a message after `count` requests; the new count.
int VerbsEndpoint::AddMessage(VerbsLane& lane, int index, int count) {
  std::byte* bytes = lane.send_slot(index);
  const size_t total = MessageBytes(bytes);
  const int slot = lane.credits.pop();
  lane.peer_slot_used[static_cast<size_t>(slot)] = true;
  const bool is_inline = total <= static_cast<size_t>(lane.max_inline);
  const uint64_t ring = lane.peer.ring + lane.slot_bytes * static_cast<size_t>(slot);
  for (size_t at = 0; at < total; at += lane.max_write) {
    const size_t size = std::min(lane.max_write, total - at);
    const bool last = at + size == total;
    ibv_sge& piece = pieces_[static_cast<size_t>(count)];
    piece = {reinterpret_cast<uintptr_t>(bytes + at), static_cast<uint32_t>(size), lane.send_region->lkey};
    ibv_send_wr& request = requests_[static_cast<size_t>(count)];
    request = {};
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.wr.rdma.remote_addr = ring + at;
    request.wr.rdma.rkey = lane.peer.key;
    if (is_inline) request.send_flags |= IBV_SEND_INLINE;
    if (last) {
      Immediate immediate{ImmediateKind::kMessage, slot};
      if (!lane.owed.empty()) {
        immediate.credit = lane.owed.pop();
        lane.recv_state[static_cast<size_t>(immediate.credit)] = VerbsLane::RecvState::kPeer;
      }
      request.imm_data = htonl(immediate.Pack());
    }
    Number(lane, request, last && !is_inline ? index : -1, last && lane.ReportsNext(!is_inline));
    ++count;
  }
  // An inline message is the device's own once it is posted, which happens before anybody can write here again.
  VerbsLane::SendState& state = lane.send_state[static_cast<size_t>(index)];
  state = is_inline ? VerbsLane::SendState::kFree : VerbsLane::SendState::kSent;
  if (is_inline) lane.send_free.push(index);
  stats_.sent_bytes += total;
  ++stats_.sent_messages;
  return count;
}

void VerbsEndpoint::Number(VerbsLane& lane, ibv_send_wr& request, int slot, bool signaled) {
  const uint64_t number = lane.posted++;
  lane.slot_of_request[number % lane.slot_of_request.size()] = slot;
  request.wr_id = number | (lane.lane == Lane::kBulk ? kVerbsBulk : 0);
  if (!signaled) return;
  request.send_flags |= IBV_SEND_SIGNALED;
  lane.signaled = lane.posted;
}

void VerbsEndpoint::PostRequests(VerbsLane& lane, int count) {
  for (int i = 0; i < count; ++i) {
    requests_[static_cast<size_t>(i)].next = i + 1 < count ? &requests_[static_cast<size_t>(i) + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  ++counters_.doorbells;
  const int error = ibv_post_send(lane.pair.get(), requests_.data(), &bad);
  if (error == 0) return;
  pairs_failed_ = true;
  Break(Internal(NameOf(lane) + ": the RDMA device takes no more writes: " + std::strerror(error)));
}

// A write of nothing, into nowhere.
bool VerbsEndpoint::SendEmpty(VerbsLane& lane, ibv_wr_opcode opcode, uint32_t immediate, bool signaled) {
  ibv_send_wr& request = requests_[0];
  request = {};
  request.opcode = opcode;
  request.imm_data = htonl(immediate);
  request.wr.rdma.remote_addr = lane.peer.ring;
  request.wr.rdma.rkey = lane.peer.key;
  Number(lane, request, -1, signaled);
  PostRequests(lane, 1);
  return state_ == State::kConnected;
}

void VerbsEndpoint::SendCredit(VerbsLane& lane) {
  const int first = lane.owed.front();
  Immediate immediate{ImmediateKind::kCredit, first};
  do {
    const int slot = lane.owed.pop();
    if (slot > first) immediate.more |= 1U << (slot - first - 1);
    lane.recv_state[static_cast<size_t>(slot)] = VerbsLane::RecvState::kPeer;
  } while (!lane.owed.empty() && lane.owed.front() > first && lane.owed.front() <= first + Immediate::kMore);
  ++counters_.credit_messages;
  SendEmpty(lane, IBV_WR_RDMA_WRITE_WITH_IMM, immediate.Pack(), lane.ReportsNext(false));
}

// The slots that an owner waits for may lie behind writes that nobody reports: where neither a report nor a
// message that will be reported is on its way, a write of nothing that is follows them.
void VerbsEndpoint::Nudge(VerbsLane& lane) {
  if (!lane.starved || !lane.send_free.empty() || lane.completed < lane.signaled || !lane.pending.empty()) return;
  if (state_ != State::kConnected || lane.room() == 0) return;
  for (uint64_t number = lane.completed; number < lane.posted; ++number) {
    if (lane.slot_of_request[number % lane.slot_of_request.size()] < 0) continue;
    SendEmpty(lane, IBV_WR_RDMA_WRITE, 0, true);
    return;
  }
}

Result<RecvSlot> VerbsEndpoint::Poll() {
  owner_.Check();
  if (state_ == State::kDead) return failure_;
  (void)Reap();
  Push();
  for (int i = 0; i < kNumLanes; ++i) {
    const int which = (first_lane_ + i) % kNumLanes;
    VerbsLane& lane = lanes_[static_cast<size_t>(which)];
    if (lane.ready.empty()) continue;
    first_lane_ = (which + 1) % kNumLanes;  // the other lane goes first next time: neither starves
    const int index = lane.ready.pop();
    const VerbsLane::Arrived& arrived = lane.arrived[static_cast<size_t>(index)];
    lane.recv_state[static_cast<size_t>(index)] = VerbsLane::RecvState::kCaller;
    return RecvSlot{
        static_cast<Lane>(which), index, {lane.recv_slot(index), arrived.bytes}, arrived.ns, &arrived.header};
  }
  const bool closed = lanes_[0].peer_closed && lanes_[1].peer_closed;
  if (closed && (failure_.ok() || failure_.code() == StatusCode::kUnavailable)) {
    failure_ = Unavailable(options_.peer + " closed the connection");
  }
  if (failure_.ok()) return WouldBlock();
  state_ = State::kDead;
  return failure_;
}

void VerbsEndpoint::Release(const RecvSlot& slot) {
  owner_.Check();
  VerbsLane& lane = this->lane(slot.lane);
  VerbsLane::RecvState& state = lane.recv_state[static_cast<size_t>(slot.index)];
  CHECK(state == VerbsLane::RecvState::kCaller) << "slot " << slot.index << " released twice";
  state = VerbsLane::RecvState::kOwed;
  --lane.taken;
  lane.owed.push(slot.index);  // a message that is posted next takes it along; else Poll or PrepareWait sends it
}

bool VerbsEndpoint::TakeEvent() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(channel_.get(), &queue, &context) != 0) return false;
  ibv_ack_cq_events(queue, 1);
  return true;
}

// For a while after the latest message, a shorter one after each wait that was longer.
bool VerbsEndpoint::MaySpin() {
  if (spin_ns_ == 0) return false;
  const int64_t now_ns = clock_.NowNs();
  if (idle_since_ns_ == 0) idle_since_ns_ = now_ns;
  return now_ns - idle_since_ns_ < spin_budget_ns_;
}

// A message came: from how long that took follows whether spinning pays.
void VerbsEndpoint::Busy(int64_t now_ns) {
  if (idle_since_ns_ == 0) return;
  const bool pays = now_ns - idle_since_ns_ <= 2 * spin_ns_;
  spin_budget_ns_ = pays ? spin_ns_ : std::max(spin_budget_ns_ / 2, spin_ns_ / 16);
  idle_since_ns_ = 0;
}

// True: the next completion makes wait_fd readable.
bool VerbsEndpoint::Arm() {
  if (armed_ && reaped_since_armed_ && TakeEvent()) armed_ = false;
  if (armed_) return true;
  ++counters_.sleeps;
  reaped_since_armed_ = false;
  const int error = ibv_req_notify_cq(queue_.get(), 0);
  if (error != 0) Break(Internal(options_.peer + ": the RDMA device gives no notification: " + std::strerror(error)));
  armed_ = error == 0;
  return armed_;
}

bool VerbsEndpoint::PrepareWait() {
  owner_.Check();
  Push();
  if (state_ != State::kConnected || !lanes_[0].ready.empty() || !lanes_[1].ready.empty()) return false;
  for (VerbsLane& lane : lanes_) {
    if (!lane.starved || lane.send_free.empty()) continue;
    lane.starved = false;  // that is news once
    return false;
  }
  if (MaySpin() || !Arm()) return false;
  // What came between the last look and the notification raises none.
  return Reap() == 0;
}

int VerbsEndpoint::Reap() {
  int taken = 0;
  while (true) {
    const int count = ibv_poll_cq(queue_.get(), kPollBatch, completions_.data());
    if (count < 0) {
      Break(Internal(options_.peer + ": the RDMA device's completion queue cannot be read"));
      return taken;
    }
    for (int i = 0; i < count; ++i) OnCompletion(completions_[static_cast<size_t>(i)]);
    for (VerbsLane& lane : lanes_) {
      if (lane.receives_used > 0 && state_ == State::kConnected) PostReceives(lane, lane.receives_used);
      lane.receives_used = 0;
    }
    taken += count;
    reaped_since_armed_ = reaped_since_armed_ || count > 0;
    if (count < kPollBatch) return taken;
  }
}

void VerbsEndpoint::PostReceives(VerbsLane& lane, int count) {
  for (int i = 0; i < count; ++i) {
    ibv_recv_wr& receive = receives_[static_cast<size_t>(i)];
    receive = {};
    receive.wr_id = kVerbsReceive | (lane.lane == Lane::kBulk ? kVerbsBulk : 0);
    receive.next = i + 1 < count ? &receives_[static_cast<size_t>(i) + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(lane.pair.get(), receives_.data(), &bad);
  if (error != 0) Break(Internal(NameOf(lane) + ": the RDMA device takes no receive: " + std::strerror(error)));
}

void VerbsEndpoint::OnCompletion(const ibv_wc& completion) {
  VerbsLane& lane = lanes_[(completion.wr_id & kVerbsBulk) != 0 ? 1 : 0];
  if (completion.status != IBV_WC_SUCCESS) return OnError(lane, completion);
  if ((completion.wr_id & kVerbsReceive) != 0) {
    OnReceived(lane, completion);
  } else {
    OnSent(lane, completion.wr_id & ~(kVerbsReceive | kVerbsBulk));
  }
}

void VerbsEndpoint::OnError(VerbsLane& lane, const ibv_wc& completion) {
  pairs_failed_ = true;
  if (!failure_.ok()) return;  // the rest of the queues is flushed
  Status status = CompletionError(NameOf(lane), completion.status);
  if (!device_->PortIsActive()) {
    status = Unavailable(status.message() + "; port " + std::to_string(device_->port()) +
                         " of this host's RDMA device " + device_->name() + " is down");
  }
  Break(std::move(status));
}

// This request and all before it are done.
void VerbsEndpoint::OnSent(VerbsLane& lane, uint64_t number) {
  while (lane.completed <= number && lane.completed < lane.posted) {
    int& slot = lane.slot_of_request[lane.completed++ % lane.slot_of_request.size()];
    if (slot < 0) continue;
    lane.send_state[static_cast<size_t>(slot)] = VerbsLane::SendState::kFree;
    lane.send_free.push(slot);
    slot = -1;
  }
}

void VerbsEndpoint::OnReceived(VerbsLane& lane, const ibv_wc& completion) {
  ++lane.receives_used;
  if (failure_.code() == StatusCode::kDataLoss) return;  // what follows would be out of order
  const uint32_t bits = ntohl(completion.imm_data);
  const std::optional<Immediate> immediate = Immediate::Unpack(bits);
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM || !immediate.has_value()) {
    return Break(DataLoss(NameOf(lane) + ": a write with the unknown immediate " + std::to_string(bits)));
  }
  switch (immediate->kind) {
    case ImmediateKind::kMessage:
      OnMessage(lane, immediate->slot, completion.byte_len);
      break;
    case ImmediateKind::kCredit:
      OnCredit(lane, immediate->slot);
      for (int i = 0; i < Immediate::kMore; ++i) {
        if ((immediate->more >> i & 1U) != 0) OnCredit(lane, immediate->slot + 1 + i);
      }
      break;
    case ImmediateKind::kBye:
      lane.peer_closed = true;
      break;
  }
  if (immediate->credit >= 0) OnCredit(lane, immediate->credit);
}

void VerbsEndpoint::OnCredit(VerbsLane& lane, int slot) {
  if (slot >= kMaxVerbsSlots || !lane.peer_slot_used[static_cast<size_t>(slot)]) {
    return Break(DataLoss(NameOf(lane) + ": a credit for slot " + std::to_string(slot) + ", which holds no message"));
  }
  lane.peer_slot_used[static_cast<size_t>(slot)] = false;
  lane.credits.push(slot);
}

void VerbsEndpoint::OnMessage(VerbsLane& lane, int slot, uint32_t last_write) {
  if (slot >= lane.granted || lane.recv_state[static_cast<size_t>(slot)] != VerbsLane::RecvState::kPeer) {
    return Break(
        DataLoss(NameOf(lane) + ": a message in slot " + std::to_string(slot) + ", which is not the sender's"));
  }
  // The peer may write there at any time: what was checked is kept.
  MessageHeader& header = lane.arrived[static_cast<size_t>(slot)].header;
  std::memcpy(static_cast<void*>(&header), lane.recv_slot(slot), sizeof(header));
  // Shorter than a header: what stands there is of an older message.
  if (last_write < sizeof(MessageHeader) && lane.max_write >= lane.slot_bytes) {
    return Break(DataLoss(NameOf(lane) + ": a message that is cut short: " + std::to_string(last_write) +
                          " of at least " + std::to_string(sizeof(MessageHeader)) + " bytes came"));
  }
  Status status = CheckMessageHeader(header, lane.slot_bytes, options_.incarnation, options_.peer, lane.name, "stream");
  if (!status.ok()) return Break(std::move(status));
  const size_t total = sizeof(MessageHeader) + header.payload_bytes;
  const size_t expected = (total - 1) % lane.max_write + 1;
  if (last_write != expected) {
    return Break(DataLoss(NameOf(lane) + ": a message that is cut short: " + std::to_string(last_write) + " of " +
                          std::to_string(expected) + " bytes came"));
  }
  lane.recv_state[static_cast<size_t>(slot)] = VerbsLane::RecvState::kReady;
  lane.arrived[static_cast<size_t>(slot)].bytes = total;
  lane.arrived[static_cast<size_t>(slot)].ns = clock_.NowNs();
  Busy(lane.arrived[static_cast<size_t>(slot)].ns);
  lane.ready.push(slot);
  ++lane.taken;
  stats_.received_bytes += total;
  ++stats_.received_messages;
}

}  // namespace fastdecode
