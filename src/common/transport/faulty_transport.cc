#include "common/transport/faulty_transport.h"

namespace fastdecode {

FaultyEndpoint::FaultyEndpoint(std::unique_ptr<Endpoint> inner, FaultPlan plan)
    : inner_(std::move(inner)), plan_(std::move(plan)), random_(plan_.seed) {}

int64_t FaultyEndpoint::Due() {
  if (static_cast<int>(random_() % 100) >= plan_.delay_percent || plan_.max_delay_polls <= 0) return polls_;
  return polls_ + static_cast<int64_t>(random_() % static_cast<uint64_t>(plan_.max_delay_polls));
}

Status FaultyEndpoint::Post(const SendSlot& slot) {
  if (posts_++ == plan_.corrupt_at) slot.header()->type = static_cast<uint16_t>(100 + random_() % 60'000);
  outgoing_[static_cast<size_t>(slot.lane)].push_back({slot, Due()});
  return PostDue();
}

Status FaultyEndpoint::PostDue() {
  for (auto& queue : outgoing_) {
    while (!queue.empty() && queue.front().due <= polls_) {
      FD_RETURN_IF_ERROR(inner_->Post(queue.front().slot));
      queue.pop_front();
    }
  }
  return OkStatus();
}

// Everything that the inner endpoint has: a message held here delays those of its lane alone.
Status FaultyEndpoint::TakeAll() {
  while (true) {
    Result<RecvSlot> slot = inner_->Poll();
    if (!slot.ok()) return slot.status();
    incoming_[static_cast<size_t>(slot->lane)].push_back({*slot, Due()});
  }
}

Result<RecvSlot> FaultyEndpoint::Poll() {
  if (++polls_ == plan_.cut_at_poll) plan_.cut();
  if (ended_.ok()) {
    Status status = PostDue();
    if (status.ok()) status = TakeAll();
    if (status.code() != StatusCode::kWouldBlock) ended_ = std::move(status);
  }
  for (auto& queue : incoming_) {
    if (queue.empty() || (queue.front().due > polls_ && ended_.ok())) continue;
    const RecvSlot slot = queue.front().slot;
    queue.pop_front();
    return slot;
  }
  if (!ended_.ok()) return ended_;
  return Status(StatusCode::kWouldBlock, {});
}

bool FaultyEndpoint::Holds() const {
  for (const auto& queue : outgoing_) {
    if (!queue.empty()) return true;
  }
  for (const auto& queue : incoming_) {
    if (!queue.empty()) return true;
  }
  return plan_.cut_at_poll > polls_;
}

bool FaultyEndpoint::PrepareWait() {
  // Time passes by polls: what is due later would wait for ever.
  return ended_.ok() && !Holds() && inner_->PrepareWait();
}

}  // namespace fastdecode
