// Computes one layer of a step with all threads of the pool.
//
// The work is cut into pieces: a row, a range of its context and a run of KV heads.
// Ranges depend on the row's length alone, since where they lie decides how results
// round; the run of heads does not touch the result and depends on the batch: long
// enough that a piece is read in long runs, short enough that every thread gets
// several. Threads take pieces from a counter; who finishes a row's last range for a
// run of heads merges its partial results. Where the cache has an arena a NUMA node, each
// has a counter for the rows whose blocks lie there, and a thread takes from its own
// node's before it helps out elsewhere.
//
// Everything is allocated in the constructor. Thread rule: the owner's thread calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/dispatch.h"
#include "rworker/compute_pool.h"
#include "rworker/cpu_topology.h"
#include "rworker/paged_kv.h"

namespace fastdecode::rworker {

// One row of a step, as planned.
struct PlannedRow {
  int32_t row = 0;  // index among the step's rows, and so in Q, K, V and O
  int32_t slot = 0;
  uint32_t generation = 0;  // of the slot
  int32_t position = 0;     // of the new token
  int32_t num_ranges = 0;
  int32_t heads_per_piece = 0;  // KV heads
  int32_t head_runs = 0;        // pieces of one range
  int64_t first_piece = 0;
  int64_t first_partial = 0;  // index of the row's first range among all partial results
};

// A step's rows and the totals over them; the rows' storage belongs to whoever plans.
struct StepPlan {
  std::span<PlannedRow> rows;  // ordered by their arenas
  std::array<int64_t, kMaxNumaNodes> arena_pieces_end{};
  int64_t num_pieces = 0;
  int64_t context_tokens = 0;
};

class LayerRun {
 public:
  LayerRun(PagedKv* kv, const kernels::AttentionKernel* kernel, ComputePool* pool, int32_t max_rows);

  // Fills in all but row, slot, generation and position, and brings the rows in order.
  void Plan(StepPlan& plan) const;

  // Appends the rows' K and V to `layer` and attends.
  //   qkv_rows [rows, qkv_width], o_rows [rows, q_width], f16
  void Run(const StepPlan& plan, int layer, const uint16_t* qkv_rows, uint16_t* o_rows);

  int32_t range_tokens() const { return range_tokens_; }

 private:
  void WorkOnPieces(int thread);
  void WorkOnArena(int arena, std::byte* scratch);
  void ComputePiece(const PlannedRow& row, int64_t piece_of_row, std::byte* scratch);
  void FinishRange(const PlannedRow& row, int64_t run, int head_begin, int head_end);

  PagedKv* const kv_;
  const kernels::AttentionKernel* const kernel_;
  ComputePool* const pool_;
  const AttentionShape shape_;
  const int32_t range_tokens_;

  // The layer being computed.
  const StepPlan* plan_ = nullptr;
  int layer_ = 0;
  const uint16_t* qkv_rows_ = nullptr;
  uint16_t* o_rows_ = nullptr;
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };
  std::array<Counter, kMaxNumaNodes> next_piece_;  // by arena

  int64_t scratch_bytes_ = 0;                            // of one thread
  std::unique_ptr<std::byte[]> scratch_;                 // one for each thread
  std::unique_ptr<std::atomic<int32_t>[]> ranges_done_;  // [max_rows, num_kv_heads]; 0 between runs
  // [ranges of rows with more than one, num_heads, head_dim] and [..., num_heads]; touched as they are needed
  std::unique_ptr<float[]> partial_acc_;
  std::unique_ptr<float[]> partial_max_;
  std::unique_ptr<float[]> partial_sum_;
};

}  // namespace fastdecode::rworker
