#include "tests/support/local_attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace fastdecode {

LocalAttention::LocalAttention(const SessionOptions& session, int num_rworkers, size_t kv_bytes, uint64_t seed)
    : shape_(session.shape),
      peers_(static_cast<size_t>(num_rworkers)),
      passes_(static_cast<size_t>(session.mini_batches)),
      pieces_(kPieces),
      piece_used_(kPieces, false),
      workload_(peers_.size(), 0),
      compute_ns_(peers_.size(), 0),
      random_(seed) {
  const rworker::SessionLimits limits{.block_tokens = session.block_tokens,
                                      .max_context = session.max_context,
                                      .max_sequences = session.max_sequences,
                                      .max_rows = session.max_rows,
                                      .max_mini_batches = session.mini_batches};
  const kernels::AttentionKernel* const kernel =
      kernels::ChooseAttentionKernel("reference", kernels::DetectCpuFeatures()).kernel;
  const kernels::KvCodec codec = kernels::CodecOf(*kernel, kernels::KvFormat::kF16, kernels::KvFormat::kF16);
  for (Peer& p : peers_) {
    auto memory = rworker::PoolMemory::Map(static_cast<int64_t>(kv_bytes), 0);
    CHECK(memory.ok()) << memory.status().ToString();
    p.memory = std::make_unique<rworker::PoolMemory>(std::move(*memory));
    auto service = rworker::AttentionService::Create(shape_, limits, p.memory.get(), kernel, codec, &pool_);
    CHECK(service.ok()) << service.status().ToString();
    p.service = std::move(*service);
    p.pair_workload.assign(passes_.size(), 0);
  }
  for (auto& piece : pieces_) piece.resize(static_cast<size_t>(kPushRows * 2 * shape_.kv_width()) * 2);
}

void LocalAttention::Lose(int rworker) {
  peer(rworker).lost = true;
  for (Pass& pass : passes_) {
    for (Slice& slice : pass.slices) {
      if (slice.range.rworker == rworker) slice.lost = true;
    }
  }
  events_.push_back(
      {.kind = AttentionEvent::Kind::kLost, .rworker = rworker, .reason = Unavailable("lost on purpose")});
}

Status LocalAttention::BeginPass(int mini_batch, uint64_t step, std::span<const StepRow> rows,
                                 std::span<const RowSlice> slices) {
  if (Refuse()) return {StatusCode::kWouldBlock, ""};
  Pass& pass = passes_[static_cast<size_t>(mini_batch)];
  pass.step = step;
  pass.slices.clear();
  for (const RowSlice& range : slices) {
    Slice slice{.range = range, .lost = peer(range.rworker).lost};
    slice.qkv.resize(static_cast<size_t>(range.rows * shape_.qkv_width()) * 2);
    slice.o.resize(static_cast<size_t>(range.rows * shape_.q_width()) * 2);
    if (!slice.lost) {
      const Status status =
          peer(range.rworker)
              .service->BeginStep(mini_batch, step,
                                  rows.subspan(static_cast<size_t>(range.row_begin), static_cast<size_t>(range.rows)));
      CHECK(status.ok()) << status.ToString();
    }
    pass.slices.push_back(std::move(slice));
  }
  return OkStatus();
}

void LocalAttention::Idle(int mini_batch) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    int64_t& pair = peers_[r].pair_workload[static_cast<size_t>(mini_batch)];
    workload_[r] -= std::exchange(pair, 0);
  }
}

Result<std::span<const HostRows>> LocalAttention::AcquireQkv(int mini_batch) {
  if (Refuse()) return Status(StatusCode::kWouldBlock, "");
  Pass& pass = passes_[static_cast<size_t>(mini_batch)];
  pass.qkv.clear();
  for (Slice& slice : pass.slices) {
    pass.qkv.push_back({.rworker = slice.range.rworker,
                        .row_begin = slice.range.row_begin,
                        .rows = slice.range.rows,
                        .data = slice.lost ? nullptr : slice.qkv.data(),
                        .lost = slice.lost});
  }
  return std::span<const HostRows>(pass.qkv);
}

Status LocalAttention::SubmitQkv(int mini_batch, int layer) {
  Pass& pass = passes_[static_cast<size_t>(mini_batch)];
  Idle(mini_batch);
  for (Slice& slice : pass.slices) {
    if (slice.lost) continue;
    rworker::AttendInfo info;
    const Status status =
        peer(slice.range.rworker)
            .service->Attend(mini_batch, pass.step, layer, reinterpret_cast<const uint16_t*>(slice.qkv.data()),
                             slice.range.rows, reinterpret_cast<uint16_t*>(slice.o.data()), &info);
    CHECK(status.ok()) << status.ToString();
    peer(slice.range.rworker).pair_workload[static_cast<size_t>(mini_batch)] = info.context_tokens;
    workload_[static_cast<size_t>(slice.range.rworker)] += info.context_tokens;
  }
  pass.info = {.posted_ns = NowNs(), .arrived_ns = NowNs()};
  events_.push_back({.kind = AttentionEvent::Kind::kAttended, .mini_batch = mini_batch, .info = pass.info});
  return OkStatus();
}

Result<HostRows> LocalAttention::AcquireKv(int rworker) {
  if (peer(rworker).lost) return HostRows{.rworker = rworker, .lost = true};
  for (size_t i = 0; i < kPieces; ++i) {
    if (piece_used_[i]) continue;
    piece_used_[i] = true;
    return HostRows{.rworker = rworker, .rows = kPushRows, .data = pieces_[i].data()};
  }
  return Status(StatusCode::kWouldBlock, "");
}

Status LocalAttention::SubmitKv(const HostRows& piece, SequenceId sequence, int layer, int position, int rows) {
  for (size_t i = 0; i < kPieces; ++i) {
    if (pieces_[i].data() == piece.data) piece_used_[i] = false;
  }
  if (peer(piece.rworker).lost) return OkStatus();
  const Status status =
      peer(piece.rworker)
          .service->AppendPrefill(sequence, layer, position, rows, reinterpret_cast<const uint16_t*>(piece.data));
  CHECK(status.ok()) << status.ToString();
  return OkStatus();
}

Status LocalAttention::FinishPrefill(int rworker, SequenceId sequence, int tokens) {
  if (peer(rworker).lost) return OkStatus();
  if (Refuse()) return {StatusCode::kWouldBlock, ""};
  const Status status = peer(rworker).service->FinishPrefill(sequence, tokens);
  CHECK(status.ok()) << status.ToString();
  events_.push_back({.kind = AttentionEvent::Kind::kPrefillDone, .sequence = sequence, .rworker = rworker});
  return OkStatus();
}

void LocalAttention::Free(int rworker, SequenceId sequence) {
  if (!peer(rworker).lost) CHECK(peer(rworker).service->Free(sequence).ok());
  events_.push_back({.kind = AttentionEvent::Kind::kFreed, .sequence = sequence, .rworker = rworker});
}

std::optional<AttentionEvent> LocalAttention::Poll() {
  if (events_.empty()) return std::nullopt;
  // Any event may come next, but those of one sequence stay in order: they are never two at a time.
  const size_t next = random_() % events_.size();
  AttentionEvent event = std::move(events_[next]);
  events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(next));
  if (event.kind == AttentionEvent::Kind::kAttended) {
    Pass& pass = passes_[static_cast<size_t>(event.mini_batch)];
    pass.o.clear();
    for (Slice& slice : pass.slices) {
      pass.o.push_back({.rworker = slice.range.rworker,
                        .row_begin = slice.range.row_begin,
                        .rows = slice.range.rows,
                        .data = slice.lost ? nullptr : slice.o.data(),
                        .lost = slice.lost});
    }
    event.o = pass.o;
  }
  return event;
}

}  // namespace fastdecode
