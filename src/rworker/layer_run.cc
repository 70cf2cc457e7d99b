#include "rworker/layer_run.h"

#include <algorithm>
#include <utility>

namespace fastdecode::rworker {
namespace {

// Long enough that partial results (f32, one range each) are under 2 % of what is read. The last range of a context is
// half of it to one and a half.
constexpr int32_t kRangeTokens = 512;
// Bounds of the bytes of a piece. Below, starting one shows; above, nothing is gained.
constexpr int64_t kMinPieceBytes = int64_t{64} << 10;
constexpr int64_t kMaxPieceBytes = int64_t{8} << 20;
constexpr int64_t kPiecesPerThread = 12;
constexpr int64_t kCacheLine = 64;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int32_t RangeTokens(int32_t block_tokens) {
  return static_cast<int32_t>(CeilDiv(kRangeTokens, block_tokens) * block_tokens);
}

// Most ranges that rows of more than one range can have together: such a row has at
// most 2 * length / range_tokens, and the lengths share the pool's blocks.
int64_t MaxPartials(const PagedKv& kv, int32_t range_tokens, int32_t max_rows) {
  const KvGeometry& geometry = kv.geometry();
  const int64_t by_blocks = 2 * CeilDiv(kv.stats().total_blocks * geometry.block_tokens, range_tokens);
  const int64_t by_rows = max_rows * CeilDiv(geometry.max_context, range_tokens);
  return std::min(by_blocks, by_rows);
}

}  // namespace

LayerRun::LayerRun(PagedKv* kv, const kernels::AttentionKernel* kernel, ComputePool* pool, int32_t max_rows)
    : kv_(kv),
      kernel_(kernel),
      pool_(pool),
      shape_(kv->geometry().shape),
      range_tokens_(RangeTokens(kv->geometry().block_tokens)) {
  const int32_t group = shape_.num_heads / shape_.num_kv_heads;
  const int64_t needed =
      kernels::AttendScratchBytes(kv->geometry().codec, shape_.num_kv_heads, group, 1, shape_.head_dim);
  scratch_bytes_ = CeilDiv(needed, kCacheLine) * kCacheLine + kCacheLine;  // threads share no line
  scratch_.reset(new std::byte[static_cast<size_t>(scratch_bytes_ * pool->num_threads() + kCacheLine)]);
  ranges_done_.reset(
      new std::atomic<int32_t>[static_cast<size_t>(max_rows) * static_cast<size_t>(shape_.num_kv_heads)]());
  const int64_t partials = MaxPartials(*kv, range_tokens_, max_rows);
  const size_t heads = static_cast<size_t>(partials * shape_.num_heads);
  partial_acc_.reset(new float[heads * static_cast<size_t>(shape_.head_dim)]);
  partial_max_.reset(new float[heads]);
  partial_sum_.reset(new float[heads]);
}

void LayerRun::Plan(StepPlan& plan) const {
  const int64_t token_bytes = kv_->layout().block_bytes() / kv_->layout().block_tokens;
  plan.context_tokens = 0;
  for (const PlannedRow& row : plan.rows) plan.context_tokens += row.position + 1;
  const int64_t piece_bytes = std::clamp(plan.context_tokens * token_bytes / (pool_->num_threads() * kPiecesPerThread),
                                         kMinPieceBytes, kMaxPieceBytes);
  plan.num_pieces = 0;
  plan.arena_pieces_end = {};
  if (kv_->num_arenas() > 1) {
    std::sort(plan.rows.begin(), plan.rows.end(), [this](const PlannedRow& a, const PlannedRow& b) {
      return std::pair(kv_->home(a.slot), a.row) < std::pair(kv_->home(b.slot), b.row);
    });
  }
  int64_t partials = 0;
  for (PlannedRow& row : plan.rows) {
    const int64_t length = row.position + 1;
    row.num_ranges = static_cast<int32_t>(std::max<int64_t>(1, (length + range_tokens_ / 2) / range_tokens_));
    const int64_t head_bytes = std::min<int64_t>(length, range_tokens_) * token_bytes / shape_.num_kv_heads;
    const int64_t heads = std::clamp<int64_t>(piece_bytes / head_bytes, 1, shape_.num_kv_heads);
    row.head_runs = static_cast<int32_t>(CeilDiv(shape_.num_kv_heads, heads));
    row.heads_per_piece = static_cast<int32_t>(CeilDiv(shape_.num_kv_heads, row.head_runs));
    row.head_runs = static_cast<int32_t>(CeilDiv(shape_.num_kv_heads, row.heads_per_piece));
    row.first_piece = plan.num_pieces;
    plan.num_pieces += int64_t{row.num_ranges} * row.head_runs;
    row.first_partial = partials;
    if (row.num_ranges > 1) partials += row.num_ranges;
    plan.arena_pieces_end[static_cast<size_t>(kv_->home(row.slot))] = plan.num_pieces;
  }
  for (size_t arena = 1; arena < plan.arena_pieces_end.size(); ++arena) {  // arenas without rows
    plan.arena_pieces_end[arena] = std::max(plan.arena_pieces_end[arena], plan.arena_pieces_end[arena - 1]);
  }
}

void LayerRun::Run(const StepPlan& plan, int layer, const uint16_t* qkv_rows, uint16_t* o_rows) {
  plan_ = &plan;
  layer_ = layer;
  qkv_rows_ = qkv_rows;
  o_rows_ = o_rows;
  for (int arena = 0; arena < kv_->num_arenas(); ++arena) {
    const auto a = static_cast<size_t>(arena);
    next_piece_[a].next.store(a == 0 ? 0 : plan.arena_pieces_end[a - 1], std::memory_order_relaxed);
  }
  pool_->Run([](void* self, int thread) { static_cast<LayerRun*>(self)->WorkOnPieces(thread); }, this);
}

void LayerRun::WorkOnPieces(int thread) {
  const auto base = reinterpret_cast<uintptr_t>(scratch_.get());
  std::byte* const scratch = scratch_.get() + (-base & (kCacheLine - 1)) + thread * scratch_bytes_;
  const int arenas = kv_->num_arenas();
  for (int i = 0; i < arenas; ++i) WorkOnArena((pool_->node(thread) + i) % arenas, scratch);
}

void LayerRun::WorkOnArena(int arena, std::byte* scratch) {
  const std::span<const PlannedRow> rows = plan_->rows;
  const int64_t end = plan_->arena_pieces_end[static_cast<size_t>(arena)];
  std::atomic<int64_t>& next = next_piece_[static_cast<size_t>(arena)].next;
  while (true) {
    const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
    if (piece >= end) return;
    const auto after = std::upper_bound(rows.begin(), rows.end(), piece,
                                        [](int64_t value, const PlannedRow& row) { return value < row.first_piece; });
    const PlannedRow& row = *(after - 1);
    ComputePiece(row, piece - row.first_piece, scratch);
  }
}

void LayerRun::ComputePiece(const PlannedRow& row, int64_t piece_of_row, std::byte* scratch) {
  const int64_t range = piece_of_row / row.head_runs;
  const int64_t run = piece_of_row % row.head_runs;
  const int head_begin = static_cast<int>(run) * row.heads_per_piece;
  const int head_end = std::min(head_begin + row.heads_per_piece, shape_.num_kv_heads);
  const uint16_t* const qkv = qkv_rows_ + row.row * shape_.qkv_width();
  const bool last_range = range == row.num_ranges - 1;
  if (last_range) {
    // Only this piece reads the new token of these heads.
    kv_->Write(row.slot, layer_, row.position, 1, qkv + shape_.q_width(), shape_.qkv_width(), head_begin, head_end);
  }
  kernels::AttendParams params;
  params.layout = kv_->layout();
  params.codec = &kv_->geometry().codec;
  params.options.group = shape_.num_heads / shape_.num_kv_heads;
  params.options.scale = 1.0f / __builtin_sqrtf(static_cast<float>(shape_.head_dim));
  params.blocks = kv_->layer_blocks(layer_);
  params.block_table = kv_->block_table(row.slot);
  params.q = qkv;
  params.first_position = row.position;
  params.kv_head_begin = head_begin;
  params.kv_head_end = head_end;
  params.token_begin = static_cast<int32_t>(range) * range_tokens_;
  params.token_end = last_range ? row.position + 1 : params.token_begin + range_tokens_;
  params.scratch = scratch;
  if (row.num_ranges == 1) {
    params.out = o_rows_ + row.row * shape_.q_width();
    kernels::Attend(*kernel_, params);
    return;
  }
  const int64_t partial_heads = (row.first_partial + range) * shape_.num_heads;
  params.partial_acc = partial_acc_.get() + partial_heads * shape_.head_dim;
  params.partial_max = partial_max_.get() + partial_heads;
  params.partial_sum = partial_sum_.get() + partial_heads;
  kernels::Attend(*kernel_, params);
  FinishRange(row, run, head_begin, head_end);
}

void LayerRun::FinishRange(const PlannedRow& row, int64_t run, int head_begin, int head_end) {
  std::atomic<int32_t>& done = ranges_done_[static_cast<size_t>(int64_t{row.row} * shape_.num_kv_heads + run)];
  // Acquire: the other ranges' partial results; release: this one's.
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < row.num_ranges) return;
  done.store(0, std::memory_order_relaxed);
  const int32_t group = shape_.num_heads / shape_.num_kv_heads;
  const int64_t partial_heads = row.first_partial * shape_.num_heads;
  kernels::MergeParams params;
  params.num_ranges = row.num_ranges;
  params.num_heads = shape_.num_heads;
  params.head_dim = shape_.head_dim;
  params.head_begin = head_begin * group;
  params.head_end = head_end * group;
  params.partial_acc = partial_acc_.get() + partial_heads * shape_.head_dim;
  params.partial_max = partial_max_.get() + partial_heads;
  params.partial_sum = partial_sum_.get() + partial_heads;
  params.out = o_rows_ + row.row * shape_.q_width();
  kernels::Merge(*kernel_, params);
}

}  // namespace fastdecode::rworker
