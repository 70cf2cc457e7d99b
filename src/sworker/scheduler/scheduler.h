// Decides which sequences decode, on which R-worker, in which mini-batch, and when.
//
// Pure: no I/O, no clock, no threads, no torch; its owner calls it from one thread.
// Tests and the simulator drive this very code. Method: Algorithm 1 of FastDecode
// (arXiv 2403.11421), generalised to unequal prompt and target lengths and early
// ends, per (R-worker, mini-batch) pair. docs/scheduler.md states the counting.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "sworker/request.h"

namespace fastdecode {

// Which of the pairs that have room takes a sequence.
enum class PlacementRule {
  kLowestPeak,   // where W peaks lowest with the sequence in it, in units of the R-worker's speed
  kLeastLoaded,  // on the R-worker whose W is lowest now (to study what looking ahead brings)
  kRoundRobin,   // on the next R-worker in turn (likewise)
};

struct SchedulerOptions {
  int mini_batches = 2;
  int max_batch = 64;  // sequences in flight over all mini-batches
  int prefill_tokens_per_step = 4096;
  int max_context = 0;
  int block_tokens = 32;
  int num_rworkers = 1;
  bool load_control = true;    // off: sequences start as slots and KV blocks allow
  int64_t workload_limit = 0;  // cached tokens an R-worker of speed 1, over all mini-batches; 0: auto
  int interval_steps = 0;      // steps between joins; 0: auto
  bool pacing = true;          // off: only the limit holds sequences back (to study what pacing brings)
  PlacementRule placement = PlacementRule::kLowestPeak;
};

// Sequences that an R-worker holds at most: those in flight, and those that have ended while
// their blocks are on the way back.
inline int MaxHeld(int max_batch) { return 2 * max_batch; }

// A prompt to prefill now, with its place.
struct PrefillItem {
  SequenceId sequence = 0;
  int rworker = 0;
};

// One row of a pass.
struct PassRow {
  SequenceId sequence = 0;
  int rworker = 0;
};

struct PassPlan {
  std::vector<PassRow> rows;  // ordered by R-worker; empty: nothing to decode
};

struct SchedulerStats {
  int64_t waiting = 0, prefilling = 0, ready = 0, decoding = 0;
  // W that no R-worker passes, summed over one pass of every mini-batch: as resolved for each
  // from its KV blocks and speed (0: never joined), and the largest of them.
  std::vector<int64_t> workload_limits;
  int64_t workload_limit = 0;
  std::vector<int64_t> workload;  // an R-worker: tokens read by the last passes, less what has ended since
  std::vector<int64_t> reserved_blocks, total_blocks;  // an R-worker; total 0: lost
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // R-workers come and go. A lost one's sequences are forgotten here: the caller gets
  // their ids to end them. Indices are 0 .. num_rworkers-1. `speed` is relative (1: as fast
  // as the others). An R-worker that returns with less memory may leave waiting requests
  // that fit nowhere any more: they are forgotten too, and their ids returned.
  std::vector<SequenceId> RWorkerJoined(int rworker, int64_t kv_blocks, double speed = 1.0);
  std::vector<SequenceId> RWorkerLost(int rworker);

  // kResourceExhausted, with the numbers, if the request can never fit on any R-worker
  // that has joined so far (a lost one may return); kUnavailable if none ever has.
  // max_tokens must be clipped by the context before.
  Status Submit(SequenceId sequence, int prompt_tokens, int max_tokens);

  // Prompts to prefill next (all but the last token of each, which its first pass takes: a
  // prompt of one has nothing to prefill, yet comes here for its place), up to
  // prefill_tokens_per_step together (a longer one alone). Their KV blocks are reserved. At most one prefill is in
  // flight: call again after its PrefillDone. Empty: nothing may start now; ask again after the next event or pass.
  std::vector<PrefillItem> PlanPrefill();
  // The prefilled K/V are on its R-worker: it may join a mini-batch.
  void PrefillDone(SequenceId sequence);

  // The next pass of a mini-batch. Call it at that mini-batch's boundary only: every row
  // of its last plan has advanced by one token. Sequences join here. Call it at every boundary,
  // with nothing to decode too: what the last pass read counts against the workload limit
  // until then.
  PassPlan PlanPass(int mini_batch);

  // The sequence ended (finished, cancelled or failed) and computes no more; its blocks stay
  // reserved until BlocksFreed says that the R-worker has let go of them (none are if it
  // was still waiting). Any state; unknown ids are ignored.
  void Finished(SequenceId sequence);
  void BlocksFreed(SequenceId sequence);

  bool Idle() const;  // No sequence in any state and no block reserved.
  SchedulerStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastdecode
