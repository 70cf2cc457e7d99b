// Drives the real scheduler as the engine does, with no device, network or clock: passes of
// the mini-batches in turn, one prefill in flight, news of freed KV blocks that comes late.
// It keeps its own account of every sequence, and checks the scheduler against it after each
// call. One thread; all chance comes from the seed.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sworker/scheduler/scheduler.h"

namespace fastdecode {

struct SimRequest {
  int64_t arrival_round = 0;
  int prompt = 0;
  int max_tokens = 0;
  int tokens = 0;             // that it really makes: 1 .. max_tokens
  int64_t cancel_round = -1;  // -1: never
};

struct SimRWorkerEvent {
  int64_t round = 0;
  int rworker = 0;
  int64_t kv_blocks = 0;  // 0: it is lost; otherwise it joins with so many
};

// Time of one pass: the slower of the S-part, for all rows of the pass, and the slowest
// R-worker's R-part. Arbitrary units.
struct CostModel {
  double s_base = 0;
  double s_row = 0;
  double r_token = 0;  // a cached token, on an R-worker of speed 1
};

struct SimOptions {
  SchedulerOptions scheduler;
  std::vector<int64_t> kv_blocks;  // an R-worker, from the start; 0: not yet there
  std::vector<double> speeds;      // empty: all 1
  std::vector<SimRWorkerEvent> events;
  CostModel cost;
  int max_prefill_passes = 3;  // a prefill takes 1 .. this many passes
  int max_free_passes = 3;     // news of freed blocks takes 0 .. this many
  int64_t max_rounds = 1'000'000;
  bool check_books = true;  // off: only W is checked, for large runs
  uint32_t seed = 0;
};

struct SimResult {
  std::vector<std::string> violations;  // of what a scheduler must keep, in words; at most a few
  int64_t finished = 0, cancelled = 0, lost = 0, refused = 0;
  int64_t rounds = 0;
  int64_t decoded_tokens = 0;
  double time = 0;
  double max_pass_time = 0;
  int64_t peak_workload = 0;          // of one R-worker, summed over a round
  double peak_relative_workload = 0;  // the same, divided by its R-worker's speed
  double mean_workload = 0;           // peak_workload's sum, mean over rounds and R-workers
  double mean_rows = 0;               // decoding, over a round
  int64_t max_in_flight = 0;
  int64_t longest_wait_rounds = 0;         // from arrival to the first decode step
  std::vector<int64_t> workload_by_round;  // of R-worker 0
};

class SchedulerSim {
 public:
  SchedulerSim(const SimOptions& options, std::vector<SimRequest> requests);
  // Until every request has ended and the scheduler is idle.
  SimResult Run();

 private:
  enum class Where { kAway, kWaiting, kPrefilling, kReady, kDecoding, kFreeing, kGone };
  struct Sequence {
    SimRequest request;
    Where where = Where::kAway;
    int rworker = -1;
    int64_t tokens = 0;         // made so far
    int64_t free_at = 0;        // pass at which its blocks are let go
    int64_t first_decode = -1;  // round
  };

  void BeginRound();
  void FinishPass(int mini_batch);
  void Prefill();
  void Pass(int mini_batch);
  void End(SequenceId id, int64_t& counter);
  void Free();
  void CheckWorkload();
  void CheckBooks();
  bool Done() const;
  int64_t Blocks(const Sequence& s) const;
  int64_t Draw(int64_t low, int64_t high);
  void Violate(const std::string& what);

  SimOptions options_;
  Scheduler scheduler_;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<SequenceId> by_arrival_;
  size_t arrived_ = 0;
  std::multimap<int64_t, SequenceId> cancels_;
  std::vector<SequenceId> freeing_;
  std::vector<int64_t> kv_blocks_;
  std::vector<int64_t> limits_;
  std::vector<std::vector<PassRow>> rows_;       // a mini-batch: of its pass in flight
  std::vector<std::vector<int64_t>> workloads_;  // a mini-batch, an R-worker: of its last pass
  std::vector<PrefillItem> prefill_;
  int64_t prefill_done_at_ = 0;
  int64_t round_ = 0;
  int64_t pass_ = 0;
  std::mt19937 random_;
  SimResult result_;
};

// The first `count` lengths of a trace (bench/traces), as served with this context:
// ClipToContext. All arrive in round 0.
std::vector<SimRequest> TraceRequests(const std::string& path, size_t count, int context);

}  // namespace fastdecode
