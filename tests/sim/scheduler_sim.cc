#include "scheduler_sim.h"

#include <algorithm>
#include <numeric>

#include "common/base/logging.h"
#include "common/traces/request_trace.h"

namespace fastdecode {

SchedulerSim::SchedulerSim(const SimOptions& options, std::vector<SimRequest> requests)
    : options_(options), scheduler_(options.scheduler), random_(options.seed) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const SimRequest& a, const SimRequest& b) { return a.arrival_round < b.arrival_round; });
  SequenceId id = 0;
  for (const SimRequest& request : requests) {
    sequences_[++id].request = request;
    by_arrival_.push_back(id);
    if (request.cancel_round >= 0) cancels_.emplace(request.cancel_round, id);
  }
  const auto rworkers = static_cast<size_t>(options.scheduler.num_rworkers);
  CHECK_EQ(options.kv_blocks.size(), rworkers);
  if (options_.speeds.empty()) options_.speeds.assign(rworkers, 1.0);
  kv_blocks_.assign(rworkers, 0);
  limits_.assign(rworkers, 0);
  rows_.resize(static_cast<size_t>(options.scheduler.mini_batches));
  workloads_.assign(rows_.size(), std::vector<int64_t>(rworkers));
  for (int r = 0; r < static_cast<int>(rworkers); ++r) {
    const int64_t blocks = options.kv_blocks[static_cast<size_t>(r)];
    if (blocks > 0) options_.events.insert(options_.events.begin(), {.round = 0, .rworker = r, .kv_blocks = blocks});
  }
}

SimResult SchedulerSim::Run() {
  double workload_sum = 0;
  for (; !Done() && round_ < options_.max_rounds && result_.violations.size() < 5; ++round_) {
    BeginRound();
    for (int m = 0; m < options_.scheduler.mini_batches; ++m, ++pass_) {
      FinishPass(m);
      Free();
      Prefill();
      Pass(m);
      CheckWorkload();
      if (options_.check_books) CheckBooks();
    }
    for (const auto& by_rworker : workloads_) {
      workload_sum += std::accumulate(by_rworker.begin(), by_rworker.end(), 0.0);
    }
    result_.workload_by_round.push_back(0);
    for (const auto& by_rworker : workloads_) result_.workload_by_round.back() += by_rworker[0];
  }
  if (!Done()) Violate("not done, or the scheduler not idle, after the last round");
  const double rounds = std::max<double>(1, static_cast<double>(round_));
  result_.rounds = round_;
  result_.mean_workload = workload_sum / rounds / options_.scheduler.num_rworkers;
  result_.mean_rows = static_cast<double>(result_.decoded_tokens) / rounds;
  return result_;
}

bool SchedulerSim::Done() const {
  return arrived_ == by_arrival_.size() && scheduler_.Idle() &&
         std::all_of(sequences_.begin(), sequences_.end(),
                     [](const auto& entry) { return entry.second.where == Where::kGone; });
}

void SchedulerSim::BeginRound() {
  for (const SimRWorkerEvent& event : options_.events) {
    if (event.round != round_) continue;
    const auto r = static_cast<size_t>(event.rworker);
    kv_blocks_[r] = event.kv_blocks;
    if (event.kv_blocks > 0) {
      for (SequenceId id : scheduler_.RWorkerJoined(event.rworker, event.kv_blocks, options_.speeds[r])) {
        if (sequences_[id].where != Where::kWaiting) Violate("gave up a sequence that was not waiting");
        sequences_[id].where = Where::kGone;
        ++result_.refused;
      }
      limits_ = scheduler_.stats().workload_limits;
      continue;
    }
    for (SequenceId id : scheduler_.RWorkerLost(event.rworker)) {
      Sequence& s = sequences_[id];
      if (s.rworker != event.rworker) Violate("lost a sequence of another R-worker");
      s.where = Where::kGone;
      ++result_.lost;
    }
    for (auto& [id, s] : sequences_) {
      if (s.rworker != event.rworker || s.where == Where::kGone) continue;
      if (s.where != Where::kFreeing) Violate("a sequence of the lost R-worker was not named");
      s.where = Where::kGone;
    }
    for (auto& by_rworker : workloads_) by_rworker[r] = 0;
  }
  for (; arrived_ < by_arrival_.size(); ++arrived_) {
    Sequence& s = sequences_[by_arrival_[arrived_]];
    if (s.request.arrival_round > round_) break;
    const Status status = scheduler_.Submit(by_arrival_[arrived_], s.request.prompt, s.request.max_tokens);
    s.where = status.ok() ? Where::kWaiting : Where::kGone;
    if (!status.ok()) ++result_.refused;
  }
  for (; !cancels_.empty() && cancels_.begin()->first <= round_; cancels_.erase(cancels_.begin())) {
    const SequenceId id = cancels_.begin()->second;
    const Where where = sequences_[id].where;
    if (where == Where::kAway || where == Where::kFreeing || where == Where::kGone) continue;
    End(id, result_.cancelled);
  }
}

void SchedulerSim::End(SequenceId id, int64_t& counter) {
  Sequence& s = sequences_[id];
  const bool held_blocks = s.where != Where::kWaiting;
  scheduler_.Finished(id);
  ++counter;
  s.where = held_blocks ? Where::kFreeing : Where::kGone;
  if (!held_blocks) return;
  s.free_at = pass_ + Draw(0, options_.max_free_passes);
  freeing_.push_back(id);
}

void SchedulerSim::Free() {
  std::erase_if(freeing_, [&](SequenceId id) {
    Sequence& s = sequences_[id];
    if (s.free_at > pass_ && s.where == Where::kFreeing) return false;
    scheduler_.BlocksFreed(id);
    s.where = Where::kGone;
    return true;
  });
}

// Every row of the mini-batch's last pass has one more token.
void SchedulerSim::FinishPass(int mini_batch) {
  for (const PassRow& row : rows_[static_cast<size_t>(mini_batch)]) {
    Sequence& s = sequences_[row.sequence];
    if (s.where != Where::kDecoding) continue;  // cancelled or lost meanwhile
    ++s.tokens;
    if (s.tokens == s.request.tokens) End(row.sequence, result_.finished);
  }
}

void SchedulerSim::Prefill() {
  if (!prefill_.empty()) {
    if (pass_ < prefill_done_at_) return;
    for (const PrefillItem& item : prefill_) {
      Sequence& s = sequences_[item.sequence];
      scheduler_.PrefillDone(item.sequence);
      if (s.where != Where::kPrefilling) continue;
      s.where = Where::kReady;
    }
  }
  prefill_ = scheduler_.PlanPrefill();
  prefill_done_at_ = pass_ + Draw(1, options_.max_prefill_passes);
  int64_t prompt_tokens = 0;
  for (const PrefillItem& item : prefill_) {
    Sequence& s = sequences_[item.sequence];
    if (s.where != Where::kWaiting) Violate("prefills a sequence that was not waiting");
    s.where = Where::kPrefilling;
    s.rworker = item.rworker;
    prompt_tokens += s.request.prompt - 1;
  }
  if (prefill_.size() > 1 && prompt_tokens > options_.scheduler.prefill_tokens_per_step) {
    Violate("prefills more tokens together than prefill_tokens_per_step");
  }
}

void SchedulerSim::Pass(int mini_batch) {
  const PassPlan plan = scheduler_.PlanPass(mini_batch);
  rows_[static_cast<size_t>(mini_batch)] = plan.rows;
  auto& workload = workloads_[static_cast<size_t>(mini_batch)];
  std::fill(workload.begin(), workload.end(), 0);
  int last_rworker = 0;
  for (const PassRow& row : plan.rows) {
    Sequence& s = sequences_[row.sequence];
    if (s.where == Where::kReady) {
      s.where = Where::kDecoding;
      s.first_decode = round_;
      result_.longest_wait_rounds = std::max(result_.longest_wait_rounds, round_ - s.request.arrival_round);
    }
    if (s.where != Where::kDecoding) Violate("decodes a sequence that is not prefilled, or has ended");
    if (s.tokens >= s.request.max_tokens) Violate("decodes past max_tokens");
    if (row.rworker != s.rworker) Violate("a row names another R-worker than its prefill");
    if (row.rworker < last_rworker) Violate("rows are not ordered by R-worker");
    last_rworker = row.rworker;
    workload[static_cast<size_t>(row.rworker)] += s.request.prompt + s.tokens;
    ++result_.decoded_tokens;
  }
  const auto capacity =
      (options_.scheduler.max_batch + options_.scheduler.mini_batches - 1) / options_.scheduler.mini_batches;
  if (static_cast<int>(plan.rows.size()) > capacity) Violate("a mini-batch is larger than its share of max_batch");
  if (plan.rows.empty()) return;
  double time = options_.cost.s_base + options_.cost.s_row * static_cast<double>(plan.rows.size());
  for (size_t r = 0; r < workload.size(); ++r) {
    time = std::max(time, options_.cost.r_token * static_cast<double>(workload[r]) / options_.speeds[r]);
  }
  result_.time += time;
  result_.max_pass_time = std::max(result_.max_pass_time, time);
}

// The last passes of all mini-batches together, whichever came last.
void SchedulerSim::CheckWorkload() {
  for (size_t r = 0; r < kv_blocks_.size(); ++r) {
    int64_t sum = 0;
    for (const auto& by_rworker : workloads_) sum += by_rworker[r];
    result_.peak_workload = std::max(result_.peak_workload, sum);
    result_.peak_relative_workload =
        std::max(result_.peak_relative_workload, static_cast<double>(sum) / options_.speeds[r]);
    if (options_.scheduler.load_control && sum > limits_[r]) {
      Violate("W " + std::to_string(sum) + " of R-worker " + std::to_string(r) + " passes its limit " +
              std::to_string(limits_[r]));
    }
  }
}

void SchedulerSim::CheckBooks() {
  const SchedulerStats stats = scheduler_.stats();
  std::vector<int64_t> blocks(kv_blocks_.size());
  std::vector<int64_t> workload(kv_blocks_.size()), held(kv_blocks_.size());
  int64_t in_flight = 0;
  for (const auto& [id, s] : sequences_) {
    const bool flies = s.where == Where::kPrefilling || s.where == Where::kReady || s.where == Where::kDecoding;
    in_flight += flies;
    if (s.where == Where::kDecoding) workload[static_cast<size_t>(s.rworker)] += s.request.prompt + s.tokens;
    if (!flies && s.where != Where::kFreeing) continue;
    blocks[static_cast<size_t>(s.rworker)] += Blocks(s);
    ++held[static_cast<size_t>(s.rworker)];
  }
  if (in_flight > options_.scheduler.max_batch) Violate("more than max_batch in flight");
  result_.max_in_flight = std::max(result_.max_in_flight, in_flight);
  if (stats.prefilling + stats.ready + stats.decoding != in_flight) Violate("stats disagree about what is in flight");
  for (size_t r = 0; r < blocks.size(); ++r) {
    if (held[r] > MaxHeld(options_.scheduler.max_batch)) Violate("an R-worker holds too many sequences");
    if (blocks[r] > kv_blocks_[r]) Violate("KV blocks run out on R-worker " + std::to_string(r));
    if (workload[r] != stats.workload[r]) Violate("stats disagree about W");
    if (blocks[r] != stats.reserved_blocks[r]) Violate("stats disagree about reserved blocks");
    if (stats.total_blocks[r] != kv_blocks_[r]) Violate("stats disagree about total blocks");
    if (stats.workload_limits[r] > stats.workload_limit) Violate("workload_limit is not the largest one");
  }
}

int64_t SchedulerSim::Blocks(const Sequence& s) const {
  const int64_t tokens = int64_t{s.request.prompt} + s.request.max_tokens;
  return (tokens + options_.scheduler.block_tokens - 1) / options_.scheduler.block_tokens;
}

int64_t SchedulerSim::Draw(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, std::max(low, high))(random_);
}

void SchedulerSim::Violate(const std::string& what) {
  result_.violations.push_back("round " + std::to_string(round_) + ", pass " + std::to_string(pass_) + ": " + what);
}

std::vector<SimRequest> TraceRequests(const std::string& path, size_t count, int context) {
  const auto entries = ReadTrace(path);
  CHECK(entries.ok()) << entries.status().message();
  CHECK_GE(entries->size(), count) << path << " is too short";
  std::vector<SimRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const Lengths lengths = ClipToContext((*entries)[i], context);
    requests.push_back({.prompt = lengths.prompt, .max_tokens = lengths.output, .tokens = lengths.output});
  }
  return requests;
}

}  // namespace fastdecode
