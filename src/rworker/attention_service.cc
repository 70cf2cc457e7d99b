#include "rworker/attention_service.h"

#include <algorithm>
#include <string>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace fastdecode::rworker {
namespace {

// Bounds of what a session may ask for. Products of them stay within 64 bits.
constexpr int32_t kMaxBlockTokens = 4096;
constexpr int32_t kMaxContext = 1 << 24;
constexpr int32_t kMaxSequences = 1 << 20;
constexpr int32_t kMaxMiniBatches = 64;

std::string Number(int64_t value) { return std::to_string(value); }
std::string Name(uint64_t sequence) { return "sequence " + std::to_string(sequence); }

Status OutOfBounds(const char* what, int64_t value, int64_t low, int64_t high) {
  return InvalidArgument(std::string(what) + " is " + Number(value) + "; expected " + Number(low) + " to " +
                         Number(high));
}

Status Exhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }

Status CheckLimits(const SessionLimits& l) {
  const auto within = [](int64_t value, int64_t high) { return value >= 1 && value <= high; };
  if (!within(l.block_tokens, kMaxBlockTokens)) {
    return OutOfBounds("block_tokens", l.block_tokens, kernels::kTileTokens, kMaxBlockTokens);
  }
  if (l.block_tokens % kernels::kTileTokens != 0) {
    return InvalidArgument("block_tokens " + Number(l.block_tokens) + " is no multiple of " +
                           Number(kernels::kTileTokens));
  }
  if (!within(l.max_context, kMaxContext)) return OutOfBounds("max_context", l.max_context, 1, kMaxContext);
  if (!within(l.max_sequences, kMaxSequences)) {
    return OutOfBounds("max_sequences", l.max_sequences, 1, kMaxSequences);
  }
  if (!within(l.max_rows, l.max_sequences)) return OutOfBounds("max_rows", l.max_rows, 1, l.max_sequences);
  if (!within(l.max_mini_batches, kMaxMiniBatches)) {
    return OutOfBounds("max_mini_batches", l.max_mini_batches, 1, kMaxMiniBatches);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<AttentionService>> AttentionService::Create(const AttentionShape& shape,
                                                                   const SessionLimits& limits, PoolMemory* memory,
                                                                   const kernels::AttentionKernel* kernel,
                                                                   const kernels::KvCodec& codec, ComputePool* pool) {
  FD_RETURN_IF_ERROR(CheckShape(shape));
  FD_RETURN_IF_ERROR(CheckLimits(limits));
  const KvGeometry geometry{.shape = shape,
                            .block_tokens = limits.block_tokens,
                            .max_context = limits.max_context,
                            .max_sequences = limits.max_sequences,
                            .codec = codec};
  const int64_t blocks = PagedKv::BlocksIn(memory->bytes(), geometry, memory->num_parts());
  if (blocks < geometry.blocks_per_sequence()) {
    return Exhausted("KV memory of " + Number(memory->bytes() >> 20) + " MiB holds " + Number(blocks) + " blocks of " +
                     Number(limits.block_tokens) + " tokens, but one context of " + Number(limits.max_context) +
                     " tokens needs " + Number(geometry.blocks_per_sequence()) + "; raise kv_memory to at least " +
                     Number((geometry.blocks_per_sequence() * geometry.block_bytes() >> 20) + 1) +
                     " MiB or lower max_context");
  }
  return std::unique_ptr<AttentionService>(new AttentionService(geometry, limits, memory, kernel, pool));
}

AttentionService::AttentionService(const KvGeometry& geometry, const SessionLimits& limits, PoolMemory* memory,
                                   const kernels::AttentionKernel* kernel, ComputePool* pool)
    : shape_(geometry.shape),
      limits_(limits),
      kv_(geometry, kernel, memory->data(), memory->bytes(), memory->num_parts()),
      layer_run_(&kv_, kernel, pool, limits.max_rows),
      steps_(static_cast<size_t>(limits.max_mini_batches)),
      stamps_(static_cast<size_t>(limits.max_sequences), 0) {
  for (Step& step : steps_) step.storage.reserve(static_cast<size_t>(limits.max_rows));
  planned_.reserve(static_cast<size_t>(limits.max_rows));
  added_.reserve(static_cast<size_t>(limits.max_rows));
}

Status AttentionService::BeginStep(int mini_batch, uint64_t step, std::span<const StepRow> rows) {
  if (mini_batch < 0 || mini_batch >= limits_.max_mini_batches) {
    return OutOfBounds("mini-batch", mini_batch, 0, limits_.max_mini_batches - 1);
  }
  if (rows.size() > static_cast<size_t>(limits_.max_rows)) {
    return InvalidArgument("a step of " + std::to_string(rows.size()) + " rows; this session's limit is " +
                           Number(limits_.max_rows));
  }
  added_.clear();
  planned_.clear();
  ++begin_count_;
  Status status = PlaceRows(rows, planned_);
  if (status.ok()) status = ReserveFor(planned_);
  if (!status.ok()) {
    for (const int32_t slot : added_) kv_.Remove(slot);
    return status;
  }
  Step& started = steps_[static_cast<size_t>(mini_batch)];
  started.begun = true;
  started.number = step;
  started.storage.assign(planned_.begin(), planned_.end());
  started.plan.rows = started.storage;
  layer_run_.Plan(started.plan);
  return OkStatus();
}

Status AttentionService::PlaceRows(std::span<const StepRow> rows, std::vector<PlannedRow>& planned) {
  for (const StepRow row : rows) {  // a copy: the peer may be able to write to it still
    int32_t slot = kv_.Find(row.sequence);
    if (slot != kNoSlot && stamps_[static_cast<size_t>(slot)] == begin_count_) {
      return InvalidArgument(Name(row.sequence) + " appears twice in one step");
    }
    FD_RETURN_IF_ERROR(CheckStepRow(row, slot));
    if (slot == kNoSlot) {
      slot = kv_.Add(row.sequence);
      if (slot == kNoSlot) {
        return Exhausted("no room for " + Name(row.sequence) + ": " + Number(limits_.max_sequences) +
                         " sequences are cached, which is this session's limit");
      }
      added_.push_back(slot);
    }
    stamps_[static_cast<size_t>(slot)] = begin_count_;
    PlannedRow& place = planned.emplace_back();
    place.row = static_cast<int32_t>(planned.size()) - 1;
    place.slot = slot;
    place.generation = kv_.generation(slot);
    place.position = static_cast<int32_t>(row.position);
  }
  return OkStatus();
}

Status AttentionService::CheckStepRow(const StepRow& row, int32_t slot) const {
  if (row.position >= static_cast<uint32_t>(limits_.max_context)) {
    return InvalidArgument(Name(row.sequence) + " wants token " + std::to_string(row.position) +
                           "; the context ends at " + Number(limits_.max_context));
  }
  if (slot == kNoSlot) {
    if (row.position == 0) return OkStatus();
    return NotFound(Name(row.sequence) + " is not cached here and can't go on at token " +
                    std::to_string(row.position));
  }
  const auto position = static_cast<int32_t>(row.position);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    const int32_t tokens = kv_.layer_tokens(slot, layer);
    if (tokens != position && tokens != position + 1) {
      return InvalidArgument(Name(row.sequence) + " wants token " + Number(position) + ", but layer " + Number(layer) +
                             " holds " + Number(tokens) + " tokens");
    }
  }
  return OkStatus();
}

Status AttentionService::ReserveFor(std::span<const PlannedRow> rows) {
  int64_t missing = 0;
  for (const PlannedRow& row : rows) missing += kv_.BlocksMissing(row.slot, row.position + 1);
  if (missing > kv_.stats().free_blocks) {
    return Exhausted("a step needs " + Number(missing) + " more KV blocks; " + Number(kv_.stats().free_blocks) +
                     " of " + Number(kv_.stats().total_blocks) + " are free");
  }
  for (const PlannedRow& row : rows) CHECK(kv_.Reserve(row.slot, row.position + 1));
  return OkStatus();
}

Status AttentionService::CheckAttend(int mini_batch, uint64_t step, int layer, int64_t rows) const {
  if (mini_batch < 0 || mini_batch >= limits_.max_mini_batches) {
    return OutOfBounds("mini-batch", mini_batch, 0, limits_.max_mini_batches - 1);
  }
  if (layer < 0 || layer >= shape_.num_layers) return OutOfBounds("layer", layer, 0, shape_.num_layers - 1);
  const Step& current = steps_[static_cast<size_t>(mini_batch)];
  if (!current.begun || current.number != step) {
    return InvalidArgument("rows of step " + std::to_string(step) + " of mini-batch " + Number(mini_batch) +
                           (current.begun ? ", but step " + std::to_string(current.number) + " is the one that began"
                                          : ", of which no step has begun"));
  }
  const auto planned = static_cast<int64_t>(current.plan.rows.size());
  if (rows != planned) {
    return InvalidArgument(Number(rows) + " rows for a step of " + Number(planned) + " rows");
  }
  for (const PlannedRow& row : current.plan.rows) {
    if (kv_.generation(row.slot) != row.generation) {
      return InvalidArgument("a sequence of step " + std::to_string(step) + " of mini-batch " + Number(mini_batch) +
                             " was freed before the step's end");
    }
    // Another mini-batch may have gone past since; this layer must still be where BeginStep saw it.
    const int32_t tokens = kv_.layer_tokens(row.slot, layer);
    if (tokens != row.position && tokens != row.position + 1) {
      return InvalidArgument(Name(kv_.sequence(row.slot)) + " is at token " + Number(row.position) + " in step " +
                             std::to_string(step) + ", but layer " + Number(layer) + " holds " + Number(tokens));
    }
  }
  return OkStatus();
}

Status AttentionService::Attend(int mini_batch, uint64_t step, int layer, const uint16_t* qkv_rows, int64_t rows,
                                uint16_t* o_rows, AttendInfo* info) {
  FD_RETURN_IF_ERROR(CheckAttend(mini_batch, step, layer, rows));
  const StepPlan& plan = steps_[static_cast<size_t>(mini_batch)].plan;
  const int64_t start_ns = NowNs();
  layer_run_.Run(plan, layer, qkv_rows, o_rows);
  for (const PlannedRow& row : plan.rows) kv_.set_layer_tokens(row.slot, layer, row.position + 1);
  info->compute_ns = NowNs() - start_ns;
  info->context_tokens = plan.context_tokens;
  return OkStatus();
}

Status AttentionService::AppendPrefill(uint64_t sequence, int layer, int64_t position, int64_t rows,
                                       const uint16_t* kv_rows) {
  if (layer < 0 || layer >= shape_.num_layers) return OutOfBounds("layer", layer, 0, shape_.num_layers - 1);
  if (position < 0 || position > limits_.max_context) {
    return OutOfBounds("position", position, 0, limits_.max_context);
  }
  if (rows < 1 || rows > limits_.max_context - position) {
    return OutOfBounds("rows", rows, 1, limits_.max_context - position);
  }
  int32_t slot = kv_.Find(sequence);
  const int32_t cached = slot == kNoSlot ? 0 : kv_.layer_tokens(slot, layer);
  if (position > cached) {
    return InvalidArgument(Name(sequence) + ", layer " + Number(layer) + ": tokens from " + Number(position) +
                           " on came, but " + Number(cached) + " are cached: there would be a gap");
  }
  const bool is_new = slot == kNoSlot;
  if (is_new) slot = kv_.Add(sequence);
  if (slot == kNoSlot) {
    return Exhausted("no room for " + Name(sequence) + ": " + Number(limits_.max_sequences) +
                     " sequences are cached, which is this session's limit");
  }
  const int64_t end = position + rows;
  if (!kv_.Reserve(slot, end)) {
    const int64_t missing = kv_.BlocksMissing(slot, end);
    if (is_new) kv_.Remove(slot);
    return Exhausted(Name(sequence) + " needs " + Number(missing) + " more KV blocks; " +
                     Number(kv_.stats().free_blocks) + " of " + Number(kv_.stats().total_blocks) + " are free");
  }
  kv_.Write(slot, layer, position, rows, kv_rows, 2 * shape_.kv_width(), 0, shape_.num_kv_heads);
  kv_.set_layer_tokens(slot, layer, std::max(cached, static_cast<int32_t>(end)));
  return OkStatus();
}

Status AttentionService::FinishPrefill(uint64_t sequence, int64_t tokens) {
  const int32_t slot = kv_.Find(sequence);
  if (slot == kNoSlot) return NotFound(Name(sequence) + " is not cached here: none of its tokens has come");
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    if (kv_.layer_tokens(slot, layer) != tokens) {
      return InvalidArgument(Name(sequence) + " was to be prefilled with " + Number(tokens) + " tokens, but layer " +
                             Number(layer) + " holds " + Number(kv_.layer_tokens(slot, layer)));
    }
  }
  return OkStatus();
}

Status AttentionService::Free(uint64_t sequence) {
  const int32_t slot = kv_.Find(sequence);
  if (slot != kNoSlot) kv_.Remove(slot);
  return OkStatus();
}

}  // namespace fastdecode::rworker
