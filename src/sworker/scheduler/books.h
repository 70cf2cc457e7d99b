// What the scheduler knows: its sequences, its R-workers, and each (R-worker, mini-batch)
// pair's load; and the moves from phase to phase, which keep all of it consistent. What
// moves when is decided elsewhere: admission.h, placement.h, pacing.h, passes.h.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "sworker/request.h"
#include "sworker/scheduler/load_control.h"
#include "sworker/scheduler/scheduler.h"

namespace fastdecode {

enum class Phase {
  kWaiting,     // in the queue; holds nothing
  kPrefilling,  // from here on it has a place, a slot of max_batch and its KV blocks
  kReady,       // its cache holds what is before the prompt's last token; joins when load control lets it
  kDecoding,    // a row of each pass of its mini-batch
  kSpent,       // all its tokens are made; Finished is due
  kReleasing,   // ended; keeps its KV blocks until the R-worker has let go of them
};

struct Sequence {
  SequenceId id = 0;
  uint64_t order = 0;  // of arrival
  Phase phase = Phase::kWaiting;
  int64_t prefill_tokens = 0;  // the prompt without its last token, which is the first decode step's
  int64_t decode_steps = 0;    // max_tokens
  int64_t tokens = 0;          // prompt + max_tokens: what its KV blocks are reserved for
  int rworker = -1;
  int mini_batch = -1;
  LoadEntry load;            // kDecoding
  bool waited = false;       // kReady: its own mini-batch could not take it at a boundary
  bool sum_blocked = false;  // kReady: it was the R-worker's limit, over all mini-batches, that held it back

  // The most cached tokens that one of its steps reads.
  int64_t final_tokens() const { return prefill_tokens + decode_steps; }
  // Cached tokens that its steps read, all together.
  int64_t total_workload() const { return workload_of(decode_steps); }
  int64_t workload_of(int64_t steps) const { return steps * prefill_tokens + steps * (steps + 1) / 2; }
  // Its share of W if its first decode step is `step`.
  LoadEntry LoadFrom(int64_t step) const {
    return {.start = step, .end = step + decode_steps - 1, .tokens_at_start = prefill_tokens + 1};
  }
};

struct Pair {
  LoadTracker tracker;             // what has joined; tracker.step(): the next pass
  std::vector<Sequence*> active;   // kDecoding, in the order of joining
  std::vector<Sequence*> pending;  // kPrefilling and kReady
  int64_t planned_workload = 0;    // W of the last planned pass, which may still run
  int64_t live_workload = 0;       // the same, less what has ended since
  double start_tokens = 1;         // pacing: a sequence that starts takes one

  // `tracker` with all pending sequences joining at the next pass.
  const LoadTracker& Projection();
  void AddPending(Sequence* sequence);
  void Touch() { projection_stale_ = true; }  // whenever anything else in it has changed
  // The most that this pair asks of its R-worker from the pass in flight on.
  int64_t CommittedPeak() const;

 private:
  void Project(const Sequence& sequence);

  LoadTracker projection_;
  bool projection_stale_ = true;
};

struct RWorker {
  bool known = false;  // has joined once; what follows is as it last was
  bool live = false;
  double speed = 1.0;
  int64_t total_blocks = 0;
  int64_t reserved_blocks = 0;
  int64_t held = 0;              // sequences with reserved blocks
  int64_t limit = 0;             // W over all mini-batches
  std::vector<Pair> pairs;       // a mini-batch
  std::vector<Sequence*> ready;  // kReady, first prefilled first
};

// Sums over the sequences that wait or are in flight, for pacing.
struct Demand {
  int64_t sequences = 0;
  double decode_steps = 0;
  double squared_steps = 0;  // each one's decode steps, squared
  double final_tokens = 0;
  double workload = 0;     // of all steps
  double block_steps = 0;  // KV blocks x steps

  void Add(const Sequence& sequence, int64_t blocks, int sign);
};

// Owns the sequences; pointers to them stay good until Forget.
class Books {
 public:
  explicit Books(const SchedulerOptions& scheduler_options);

  RWorker& rworker(int index);
  Pair& pair_of(const Sequence& s) { return rworker(s.rworker).pairs[static_cast<size_t>(s.mini_batch)]; }
  Sequence* Find(SequenceId id);  // null: unknown

  int64_t Blocks(const Sequence& s) const { return (s.tokens + options.block_tokens - 1) / options.block_tokens; }
  int64_t mini_batch_capacity() const { return (options.max_batch + options.mini_batches - 1) / options.mini_batches; }
  // W that one R-worker may reach, over all mini-batches.
  int64_t LimitOf(int64_t kv_blocks, double speed) const;
  // Could the empty R-worker take it?
  bool FitsEmpty(const RWorker& rworker, const Sequence& s) const;
  bool FitsSomewhere(const Sequence& s) const;  // empty, on one that has ever joined
  bool FitsLive(const Sequence& s) const;       // empty, on one that is there now

  void Enqueue(const Sequence& sequence);
  void DropWaiting(Sequence& s);  // forgets it
  // Out of the queue; takes a slot and KV blocks: kPrefilling.
  void TakePlace(Sequence& s, int rworker, int mini_batch);
  // kPrefilling to kReady.
  void Prefilled(Sequence& s);
  // kReady to kDecoding from the next pass of `mini_batch` on; the caller keeps rworker.ready.
  void Join(Sequence& s, int mini_batch);
  // Out of its mini-batch and of max_batch, from any phase in flight; its KV blocks stay: kReleasing.
  void LeavePlace(Sequence& s);
  void Forget(const Sequence& s) { sequences.erase(SequenceId{s.id}); }

  SchedulerOptions options;
  std::unordered_map<SequenceId, Sequence> sequences;  // every one not yet forgotten
  std::map<uint64_t, Sequence*> waiting;               // by order of arrival
  std::vector<RWorker> rworkers;
  std::vector<int64_t> mini_batch_sizes;  // sequences in flight
  int64_t in_flight = 0;
  int last_placed = -1;  // the R-worker that took the last sequence
  Demand demand;

 private:
  uint64_t next_order_ = 0;
};

}  // namespace fastdecode
