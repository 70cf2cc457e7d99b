// Where the S-worker's time goes: one struct that feeds bench, logs and stats.
//
// Attribution along the critical path: the device's stream is the S-worker's one
// resource, so wall time is what it computes (s_part), what it copies to and from the
// transport's memory (copy), and the gaps between. A gap belongs to what ended it: an
// O that came late (r_part for the R-worker's kernels and the queue before them, wire
// for the rest), a plan (scheduler), or a request (idle). The shares sum to 1.
//
// Thread rule: the engine thread writes; Window() and Reset() from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/traces/chrome_trace.h"
#include "sworker/attention/backend.h"

namespace fastdecode {

// When a launched piece of work passed its marks, by the clock of the host, ns.
struct StageTimes {
  int64_t begin_ns = 0;
  int64_t copied_in_ns = 0;
  int64_t computed_ns = 0;
  int64_t end_ns = 0;
};

struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// Sums over a window of time.
struct TimelineWindow {
  int64_t wall_ns = 0;
  int64_t s_part_ns = 0, r_part_ns = 0, wire_ns = 0, copy_ns = 0, scheduler_ns = 0, idle_ns = 0;
  int64_t s_busy_ns = 0;  // stages of decode passes: computing and copying, prefill left out
  int64_t r_busy_ns = 0;  // in the kernels of the busiest R-worker
  uint64_t steps = 0;     // passes of the mini-batch that made most
  uint64_t passes = 0;    // of all mini-batches
  uint64_t decode_rows = 0;
  uint64_t prefill_tokens = 0;
  uint64_t wire_bytes = 0;
  Distribution step_ms;       // a pass, from its plan to its tokens
  int64_t workload_peak = 0;  // of the busiest R-worker, as the R-workers report it
  double workload_mean = 0;
  uint64_t f16_overflows = 0;  // sequences with a Q, K or V beyond f16's range, saturated
};

// One pass, for an observer.
struct FinishedPass {
  int mini_batch = 0;
  int64_t begin_ns = 0, end_ns = 0;
  int rows = 0;
  int64_t workload = 0;    // W of the busiest R-worker, over all mini-batches
  bool prefilled = false;  // a prefill was on the device meanwhile
};

class Timeline {
 public:
  explicit Timeline(int mini_batches);
  // Told of every pass on the engine thread. Before the engine starts.
  void Observe(std::function<void(const FinishedPass&)> observer) { observer_ = std::move(observer); }

  // Also writes everything to `trace`, which must outlive it; times in it count from now.
  // Before the engine starts.
  void TraceTo(TimelineTrace* trace);

  static constexpr int kPrefill = -1;  // in place of a mini-batch
  // Work of a mini-batch, or of a prefill, ended on the stream. `unblocked` is what it had
  // waited for, null if a plan.
  void StageDone(int mini_batch, const StageTimes& times, const AttendedInfo* unblocked);
  void SetIdle(bool idle, int64_t now_ns);  // nothing in flight and nothing planned
  void PassDone(int mini_batch, int64_t begin_ns, int64_t end_ns, int rows, std::span<const int64_t> workload);
  void Prefilled(int tokens);
  void Totals(uint64_t wire_bytes, std::span<const int64_t> compute_ns);  // since the start
  void F16Overflow();
  void RWorkerLost(int rworker);

  TimelineWindow Window() const;
  void Reset();

 private:
  // Steps by their length: bucket i holds [1 µs * 1.02^i, 1 µs * 1.02^(i+1)).
  static constexpr int kBuckets = 1024;
  double Percentile(double share) const;
  void Trace(int mini_batch, const StageTimes& times, const AttendedInfo* unblocked);

  std::function<void(const FinishedPass&)> observer_;  // may be empty
  mutable std::mutex mutex_;
  TimelineTrace* trace_ = nullptr;
  int64_t trace_origin_ns_ = 0;
  TimelineWindow sums_;
  int64_t reset_ns_;
  int64_t last_end_ns_;
  int64_t last_prefill_end_ns_ = 0;
  int64_t idle_since_ns_ = 0;  // 0: not idle
  int64_t idle_in_gap_ns_ = 0;
  std::vector<uint64_t> mini_batch_passes_;
  std::array<uint32_t, kBuckets> buckets_{};
  uint64_t whole_passes_ = 0;  // that began and ended in the window
  int64_t step_sum_ns_ = 0, step_max_ns_ = 0;
  double workload_sum_ = 0;
  uint64_t wire_bytes_ = 0, wire_bytes_at_reset_ = 0;
  std::vector<int64_t> compute_ns_, compute_ns_at_reset_;
};

}  // namespace fastdecode
