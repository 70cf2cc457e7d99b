// The R-worker's attention of one session: everything between the wire's messages
// and the kernels, knowing nothing of either transport or peers.
//
// A sequence's life: AppendPrefill for every layer (in pieces, in any order of
// layers), FinishPrefill, then steps: BeginStep once, Attend once a layer, and Free.
// One of which nothing is prefilled begins with a step, at position 0.
// All that is passed in comes from another machine and is bounded before it is
// believed; an error leaves the cache as it was and says what was expected and what
// came. Once warm, nothing here allocates or logs, except to word an error.
//
// Determinism: an O row depends on that row's Q, K and V alone, bit by bit, not on
// the other rows, the number of threads or the layout of blocks: a context is cut
// into ranges by its length alone (range_tokens()) and merged in order.
//
// Thread rule: one thread owns an AttentionService (the one that the ComputePool's
// Run may be called from). It borrows kernel and pool, which outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/model_shape.h"
#include "common/base/status.h"
#include "common/wire/messages.h"
#include "kernels/dispatch.h"
#include "rworker/compute_pool.h"
#include "rworker/layer_run.h"
#include "rworker/paged_kv.h"
#include "rworker/pool_memory.h"

namespace fastdecode::rworker {

struct SessionLimits {
  int32_t block_tokens = 32;
  int32_t max_context = 0;       // tokens of one sequence
  int32_t max_sequences = 0;     // cached at a time
  int32_t max_rows = 0;          // of one step
  int32_t max_mini_batches = 0;  // mini-batch ids are below this
};

struct AttendInfo {
  int64_t compute_ns = 0;      // append, attention and merge, wall time
  int64_t context_tokens = 0;  // summed cached tokens that the rows attended to, the new ones included
};

class AttentionService {
 public:
  // Takes `memory` over for a session: whatever it held before is forgotten. `codec` is
  // what keys and values are stored as, one of the kernel's or a user's. The
  // softmax scale is 1/sqrt(head_dim). kInvalidArgument for a shape or limits out of
  // bounds, kResourceExhausted when the memory does not hold one sequence's context.
  static Result<std::unique_ptr<AttentionService>> Create(const AttentionShape& shape, const SessionLimits& limits,
                                                          PoolMemory* memory, const kernels::AttentionKernel* kernel,
                                                          const kernels::KvCodec& codec, ComputePool* pool);

  // Starts pass `step` of `mini_batch`: the new token of each row goes to `position`,
  // which is the number of tokens cached before it in every layer (a sequence that is not
  // known yet may start at 0), or that number less one in layers that this is a replay for. Each
  // sequence appears once. Allocates the blocks that the new tokens need, or none:
  // kResourceExhausted, kNotFound, kInvalidArgument.
  Status BeginStep(int mini_batch, uint64_t step, std::span<const StepRow> rows);

  // One layer of the step that BeginStep started: appends each row's K and V at its
  // position and attends with its Q over positions 0 .. position.
  //   qkv_rows [rows, qkv_width] f16, o_rows [rows, q_width] f16: 2-byte alignment, no overlap.
  // Idempotent. kInvalidArgument when `step`, `layer` or `rows` is not what BeginStep said.
  Status Attend(int mini_batch, uint64_t step, int layer, const uint16_t* qkv_rows, int64_t rows, uint16_t* o_rows,
                AttendInfo* info);

  // Stores `rows` tokens of one layer from `position` on; kv_rows [rows, K | V] f16.
  // Rewriting tokens is allowed, leaving a gap is not.
  Status AppendPrefill(uint64_t sequence, int layer, int64_t position, int64_t rows, const uint16_t* kv_rows);

  // Checks that every layer of the sequence holds exactly `tokens` tokens.
  Status FinishPrefill(uint64_t sequence, int64_t tokens);

  // Returns the sequence's blocks. An unknown sequence is freed successfully.
  Status Free(uint64_t sequence);

  const AttentionShape& shape() const { return shape_; }
  const SessionLimits& limits() const { return limits_; }
  KvStats stats() const { return kv_.stats(); }
  // Tokens of a range: a function of block_tokens alone.
  int32_t range_tokens() const { return layer_run_.range_tokens(); }

 private:
  struct Step {
    bool begun = false;
    uint64_t number = 0;
    std::vector<PlannedRow> storage;  // [max_rows]
    StepPlan plan;
  };
  AttentionService(const KvGeometry& geometry, const SessionLimits& limits, PoolMemory* memory,
                   const kernels::AttentionKernel* kernel, ComputePool* pool);

  Status CheckStepRow(const StepRow& row, int32_t slot) const;
  Status PlaceRows(std::span<const StepRow> rows, std::vector<PlannedRow>& planned);
  Status ReserveFor(std::span<const PlannedRow> rows);
  Status CheckAttend(int mini_batch, uint64_t step, int layer, int64_t rows) const;

  const AttentionShape shape_;
  const SessionLimits limits_;
  PagedKv kv_;
  LayerRun layer_run_;
  std::vector<Step> steps_;          // by mini-batch
  std::vector<PlannedRow> planned_;  // [max_rows], the step that BeginStep checks
  std::vector<int32_t> added_;       // slots that it added, to be taken back on an error
  std::vector<uint64_t> stamps_;     // by slot: the BeginStep that saw it last
  uint64_t begin_count_ = 0;
};

}  // namespace fastdecode::rworker
