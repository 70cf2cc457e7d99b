#include "sworker/attention/remote_attention.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/wire/control.h"

namespace fastdecode {
namespace {

constexpr size_t kF16 = 2;

MessageHeader Header(MessageType type, size_t payload_bytes) {
  MessageHeader header;
  header.type = static_cast<uint16_t>(type);
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  return header;
}

// For a log line: bounded, and nothing in it that could forge another.
std::string FaultText(const RecvSlot& slot) {
  constexpr size_t kMaxText = 1024;
  const size_t size = std::min<size_t>(slot.header().payload_bytes, kMaxText);
  return CleanText({reinterpret_cast<const char*>(slot.payload()), size});
}

}  // namespace

RemoteAttention::RemoteAttention(const SessionOptions& session, int num_rworkers)
    : shape_(session.shape),
      peers_(static_cast<size_t>(num_rworkers)),
      passes_(static_cast<size_t>(session.mini_batches)),
      workload_(static_cast<size_t>(num_rworkers), 0),
      compute_ns_(static_cast<size_t>(num_rworkers), 0) {
  const size_t slot = SessionLanes(session)[static_cast<size_t>(Lane::kBulk)].slot_bytes;
  const size_t kv_row = 2 * static_cast<size_t>(shape_.kv_width()) * kF16;
  max_push_rows_ = static_cast<int>((slot - sizeof(MessageHeader)) / kv_row);
  for (Peer& p : peers_) p.pair_workload.assign(passes_.size(), 0);
  for (Pass& p : passes_) {
    p.slices.reserve(peers_.size());
    p.qkv.reserve(peers_.size());
    p.o.reserve(peers_.size());
  }
  pieces_.reserve(peers_.size() * static_cast<size_t>(session.bulk_send_slots));
}

void RemoteAttention::Join(int rworker, std::unique_ptr<Endpoint> endpoint) {
  Peer& p = peer(rworker);
  CHECK(p.endpoint == nullptr) << "R-worker " << rworker << " joins while its old session lives";
  p.endpoint = std::move(endpoint);
  p.last_arrival_ns = 0;
}

void RemoteAttention::Lose(int rworker, Status reason) {
  if (peer(rworker).endpoint != nullptr) Drop(rworker, std::move(reason));
}

void RemoteAttention::HandOver() {
  for (Peer& p : peers_) {
    if (p.endpoint != nullptr) p.endpoint->HandOver();
  }
}

void RemoteAttention::Drop(int rworker, Status reason) {
  Peer& p = peer(rworker);
  const EndpointStats stats = p.endpoint->stats();
  p.past_bytes += stats.sent_bytes + stats.received_bytes;
  p.endpoint.reset();  // Closed here, or when the last slot in use is given back.
  for (size_t m = 0; m < passes_.size(); ++m) {
    SetWorkload(rworker, static_cast<int>(m), 0);
    for (Slice& slice : passes_[m].slices) {
      if (slice.range.rworker != rworker || slice.lost) continue;
      slice.lost = true;
      if (passes_[m].pending > 0 && slice.received.index < 0) SliceDone(static_cast<int>(m));
    }
  }
  for (SequenceId sequence : p.frees)
    events_.push_back({.kind = AttentionEvent::Kind::kFreed, .sequence = sequence, .rworker = rworker});
  p.frees.clear();
  p.asked.clear();
  events_.push_back({.kind = AttentionEvent::Kind::kLost, .rworker = rworker, .reason = std::move(reason)});
}

Status RemoteAttention::PostStepBegin(int mini_batch, uint64_t step, const Slice& slice,
                                      std::span<const StepRow> rows) {
  FD_ASSIGN_OR_RETURN(SendSlot slot, slice.endpoint->Acquire(Lane::kDecode));
  const size_t count = static_cast<size_t>(slice.range.rows);
  MessageHeader header = Header(MessageType::kStepBegin, count * sizeof(StepRow));
  header.mini_batch = static_cast<uint16_t>(mini_batch);
  header.rows = static_cast<uint32_t>(count);
  header.step = step;
  *slot.header() = header;
  std::memcpy(slot.payload(), rows.data() + slice.range.row_begin, count * sizeof(StepRow));
  return slice.endpoint->Post(slot);
}

Status RemoteAttention::BeginPass(int mini_batch, uint64_t step, std::span<const StepRow> rows,
                                  std::span<const RowSlice> slices) {
  Pass& p = pass(mini_batch);
  if (p.step != step) {  // The first call for this pass; later ones go on after kWouldBlock.
    p.step = step;
    p.slices.clear();
    p.layer = -1;
    Idle(mini_batch);
    for (const RowSlice& range : slices) {
      const std::shared_ptr<Endpoint>& endpoint = peer(range.rworker).endpoint;
      p.slices.push_back({.range = range, .endpoint = endpoint, .lost = endpoint == nullptr});
      int64_t context = 0;  // what the R-worker will report with O
      for (int i = 0; i < range.rows; ++i) context += rows[static_cast<size_t>(range.row_begin + i)].position + 1;
      if (endpoint != nullptr) SetWorkload(range.rworker, mini_batch, context);
    }
  }
  for (Slice& slice : p.slices) {
    if (slice.lost || slice.begun) continue;
    Status status = PostStepBegin(mini_batch, step, slice, rows);
    if (status.code() == StatusCode::kWouldBlock) return status;
    slice.begun = true;
    if (!status.ok()) Drop(slice.range.rworker, std::move(status));
  }
  return OkStatus();
}

void RemoteAttention::Idle(int mini_batch) {
  for (size_t r = 0; r < peers_.size(); ++r) SetWorkload(static_cast<int>(r), mini_batch, 0);
}

Result<std::span<const HostRows>> RemoteAttention::AcquireQkv(int mini_batch) {
  Pass& p = pass(mini_batch);
  for (Slice& slice : p.slices) {
    if (slice.lost || slice.send.index >= 0) continue;
    Result<SendSlot> slot = slice.endpoint->Acquire(Lane::kDecode);
    if (slot.ok()) {
      slice.send = *slot;
    } else if (slot.status().code() == StatusCode::kWouldBlock) {
      return slot.status();
    } else {
      Drop(slice.range.rworker, slot.status());
    }
  }
  p.qkv.clear();
  for (const Slice& slice : p.slices) {
    p.qkv.push_back({.rworker = slice.range.rworker,
                     .row_begin = slice.range.row_begin,
                     .rows = slice.range.rows,
                     .data = slice.lost ? nullptr : slice.send.payload(),
                     .lost = slice.lost});
  }
  return std::span<const HostRows>(p.qkv);
}

Status RemoteAttention::SubmitQkv(int mini_batch, int layer) {
  Pass& p = pass(mini_batch);
  CHECK_EQ(p.pending, 0);
  p.layer = layer;
  p.info = {.posted_ns = NowNs()};
  p.pending = static_cast<int>(p.slices.size()) + 1;  // One for this call.
  for (Slice& slice : p.slices) {
    slice.received.index = -1;
    if (slice.lost) {
      slice.endpoint.reset();
      SliceDone(mini_batch);
      continue;
    }
    MessageHeader header =
        Header(MessageType::kQkvRows, static_cast<size_t>(slice.range.rows * shape_.qkv_width()) * kF16);
    header.mini_batch = static_cast<uint16_t>(mini_batch);
    header.layer = static_cast<uint16_t>(layer);
    header.rows = static_cast<uint32_t>(slice.range.rows);
    header.step = p.step;
    *slice.send.header() = header;
    Status status = slice.endpoint->Post(slice.send);
    slice.send.index = -1;
    if (!status.ok()) Drop(slice.range.rworker, std::move(status));
  }
  SliceDone(mini_batch);
  return OkStatus();
}

void RemoteAttention::SliceDone(int mini_batch) {
  Pass& p = pass(mini_batch);
  if (--p.pending > 0) return;
  p.o.clear();
  for (const Slice& slice : p.slices) {
    HostRows rows{.rworker = slice.range.rworker,
                  .row_begin = slice.range.row_begin,
                  .rows = slice.range.rows,
                  .lost = slice.lost};
    // Only read: the device copies from it.
    if (!slice.lost) rows.data = const_cast<std::byte*>(slice.received.payload());
    p.o.push_back(rows);
  }
  events_.push_back({.kind = AttentionEvent::Kind::kAttended, .mini_batch = mini_batch, .info = p.info, .o = p.o});
}

void RemoteAttention::ReleaseO(int mini_batch) {
  Pass& p = pass(mini_batch);
  const bool last = p.layer + 1 == shape_.num_layers;
  for (Slice& slice : p.slices) {
    // The endpoint of a lost one is about to go: nothing more is received there.
    if (slice.received.index >= 0 && !slice.lost) slice.endpoint->Release(slice.received);
    slice.received.index = -1;
    if (last || slice.lost) slice.endpoint.reset();
  }
}

Result<HostRows> RemoteAttention::AcquireKv(int rworker) {
  Peer& p = peer(rworker);
  if (p.endpoint == nullptr) return HostRows{.rworker = rworker, .lost = true};
  Result<SendSlot> slot = p.endpoint->Acquire(Lane::kBulk);
  if (!slot.ok()) {
    if (slot.status().code() == StatusCode::kWouldBlock) return slot.status();
    Drop(rworker, slot.status());
    return HostRows{.rworker = rworker, .lost = true};
  }
  pieces_.push_back({.endpoint = p.endpoint, .slot = *slot});
  return HostRows{.rworker = rworker, .rows = max_push_rows_, .data = slot->payload()};
}

Status RemoteAttention::SubmitKv(const HostRows& piece, SequenceId sequence, int layer, int position, int rows) {
  if (piece.lost) return OkStatus();
  auto it = std::find_if(pieces_.begin(), pieces_.end(),
                         [&](const Piece& other) { return other.slot.payload() == piece.data; });
  CHECK(it != pieces_.end());
  const Piece taken = *it;
  pieces_.erase(it);
  if (taken.endpoint != peer(piece.rworker).endpoint) return OkStatus();  // lost meanwhile
  MessageHeader header =
      Header(MessageType::kKvAppend, static_cast<size_t>(rows) * 2 * static_cast<size_t>(shape_.kv_width()) * kF16);
  header.sequence = sequence;
  header.layer = static_cast<uint16_t>(layer);
  header.position = static_cast<uint32_t>(position);
  header.rows = static_cast<uint32_t>(rows);
  *taken.slot.header() = header;
  Status status = taken.endpoint->Post(taken.slot);
  if (!status.ok()) Drop(piece.rworker, std::move(status));
  return OkStatus();
}

Status RemoteAttention::PostControl(int rworker, MessageType type, MessageType answer, SequenceId sequence,
                                    int tokens) {
  const std::shared_ptr<Endpoint> endpoint = peer(rworker).endpoint;
  Result<SendSlot> slot = endpoint->Acquire(Lane::kBulk);
  Status status = slot.status();
  if (status.ok()) {
    *slot->header() = Header(type, 0);
    slot->header()->sequence = sequence;
    slot->header()->position = static_cast<uint32_t>(tokens);
    status = endpoint->Post(*slot);
  }
  if (status.ok()) {
    peer(rworker).asked.push_back({answer, sequence});
  } else if (status.code() != StatusCode::kWouldBlock) {
    Drop(rworker, std::move(status));
    return OkStatus();
  }
  return status;
}

Status RemoteAttention::FinishPrefill(int rworker, SequenceId sequence, int tokens) {
  if (peer(rworker).endpoint == nullptr) return OkStatus();  // kLost has told the rest.
  return PostControl(rworker, MessageType::kPrefillDone, MessageType::kPrefillAck, sequence, tokens);
}

void RemoteAttention::Free(int rworker, SequenceId sequence) {
  Peer& p = peer(rworker);
  if (p.endpoint == nullptr) {
    events_.push_back({.kind = AttentionEvent::Kind::kFreed, .sequence = sequence, .rworker = rworker});
    return;
  }
  p.frees.push_back(sequence);
}

uint64_t RemoteAttention::wire_bytes() const {
  uint64_t bytes = 0;
  for (const Peer& p : peers_) {
    bytes += p.past_bytes;
    if (p.endpoint == nullptr) continue;
    const EndpointStats stats = p.endpoint->stats();
    bytes += stats.sent_bytes + stats.received_bytes;
  }
  return bytes;
}

std::optional<AttentionEvent> RemoteAttention::Poll() {
  for (size_t r = 0; r < peers_.size(); ++r) PollPeer(static_cast<int>(r));
  if (events_.empty()) return std::nullopt;
  AttentionEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void RemoteAttention::PollPeer(int rworker) {
  while (!peer(rworker).frees.empty() && peer(rworker).endpoint != nullptr) {
    const SequenceId sequence = peer(rworker).frees.front();
    if (!PostControl(rworker, MessageType::kFree, MessageType::kFreed, sequence, 0).ok()) break;
    if (!peer(rworker).frees.empty()) peer(rworker).frees.pop_front();
  }
  while (peer(rworker).endpoint != nullptr) {
    Result<RecvSlot> slot = peer(rworker).endpoint->Poll();
    Status status = slot.status();
    if (status.code() == StatusCode::kWouldBlock) return;
    if (status.ok()) status = Handle(rworker, *slot);
    if (!status.ok()) Drop(rworker, std::move(status));
  }
}

Status RemoteAttention::Handle(int rworker, const RecvSlot& slot) {
  const MessageHeader& header = slot.header();
  switch (static_cast<MessageType>(header.type)) {
    case MessageType::kORows:
      return HandleO(rworker, slot);
    case MessageType::kPrefillAck:
      return HandleAnswer(rworker, slot, AttentionEvent::Kind::kPrefillDone);
    case MessageType::kFreed:
      return HandleAnswer(rworker, slot, AttentionEvent::Kind::kFreed);
    case MessageType::kFault:
      return Unavailable(peer(rworker).endpoint->options().peer + " ended the session: " + FaultText(slot));
    default:
      return DataLoss(peer(rworker).endpoint->options().peer + " sent message type " + std::to_string(header.type) +
                      ", which an R-worker does not send");
  }
}

// What was not asked, or of another's sequence, would upset the scheduler's books.
Status RemoteAttention::HandleAnswer(int rworker, const RecvSlot& slot, AttentionEvent::Kind kind) {
  const MessageHeader& header = slot.header();
  Peer& p = peer(rworker);
  if (p.asked.empty() || p.asked.front() != Question{static_cast<MessageType>(header.type), header.sequence}) {
    return DataLoss(p.endpoint->options().peer + " sent message type " + std::to_string(header.type) + " of sequence " +
                    std::to_string(header.sequence) + ", which is not the answer that is due");
  }
  p.asked.pop_front();
  events_.push_back({.kind = kind, .sequence = header.sequence, .rworker = rworker});
  p.endpoint->Release(slot);
  return OkStatus();
}

Status RemoteAttention::HandleO(int rworker, const RecvSlot& slot) {
  const MessageHeader& header = slot.header();
  const std::string& name = peer(rworker).endpoint->options().peer;
  if (header.mini_batch >= passes_.size()) return DataLoss(name + " answered for a mini-batch that does not exist");
  Pass& p = pass(header.mini_batch);
  auto it = std::find_if(p.slices.begin(), p.slices.end(),
                         [&](const Slice& s) { return s.range.rworker == rworker && !s.lost; });
  if (it == p.slices.end() || p.pending == 0 || it->received.index >= 0 || header.step != p.step ||
      header.layer != p.layer || header.rows != static_cast<uint32_t>(it->range.rows) ||
      header.context_tokens != static_cast<uint64_t>(peer(rworker).pair_workload[header.mini_batch]) ||
      header.payload_bytes != static_cast<uint64_t>(it->range.rows * shape_.q_width()) * kF16) {
    return DataLoss(name + " answered rows that were not asked for: mini-batch " + std::to_string(header.mini_batch) +
                    ", layer " + std::to_string(header.layer) + ", " + std::to_string(header.rows) + " rows of " +
                    std::to_string(header.context_tokens) + " tokens, pass " + std::to_string(header.step));
  }
  it->received = slot;
  Peer& from = peer(rworker);
  p.info.arrived_ns = slot.arrived_ns;
  p.info.compute_ns = header.compute_ns;
  p.info.queue_ns = std::max<int64_t>(header.queue_ns, from.last_arrival_ns - p.info.posted_ns);
  from.last_arrival_ns = slot.arrived_ns;
  compute_ns_[static_cast<size_t>(rworker)] += header.compute_ns;
  SliceDone(header.mini_batch);
  return OkStatus();
}

bool RemoteAttention::PrepareWait(std::vector<int>* fds) {
  bool may_sleep = events_.empty();
  for (const Peer& p : peers_) {
    if (p.endpoint == nullptr) continue;
    may_sleep = p.endpoint->PrepareWait() && may_sleep;
    fds->push_back(p.endpoint->wait_fd());
  }
  return may_sleep;
}

void RemoteAttention::SetWorkload(int rworker, int mini_batch, int64_t tokens) {
  int64_t& pair = peer(rworker).pair_workload[static_cast<size_t>(mini_batch)];
  workload_[static_cast<size_t>(rworker)] += tokens - pair;
  pair = tokens;
}

}  // namespace fastdecode
