// bench_scheduler: what a step costs the scheduler thread.
//
// Unit: microseconds of CPU time a step: PlanPrefill and PlanPass of every mini-batch, and the
// news of the step (prefills done, sequences finished, blocks freed). Limit to compare with: 200
// a step with 4096 sequences decoding and 100,000 waiting; a step of a model takes tens of
// milliseconds. Lengths are drawn: prompts 1 .. 512, outputs 2 .. 512, from --seed.
#include <gflags/gflags.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_map>
#include <vector>

#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "sworker/scheduler/scheduler.h"

DEFINE_int32(running, 4096, "sequences in flight (max_batch)");
DEFINE_int32(waiting, 100'000, "sequences that wait, kept at that number");
DEFINE_int32(rworkers, 8, "R-workers");
DEFINE_int32(mini_batches, 2, "mini-batches");
DEFINE_int32(steps, 2000, "steps that are measured, after as many as it takes to fill up");
DEFINE_bool(equal, false, "all prompts 1 token, all outputs 512: the paced case");
DEFINE_double(limit, 0.95, "workload limit, as a share of the W that a full batch has in the mean; 0: no load control");
DEFINE_uint64(seed, 1, "of the lengths");

namespace fastdecode {
namespace {

int64_t CpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class Stopwatch {
 public:
  template <typename Work>
  auto Time(Work&& work) {
    const int64_t begin = CpuNs();
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      sum_ += CpuNs() - begin;
    } else {
      auto result = work();
      sum_ += CpuNs() - begin;
      return result;
    }
  }
  void Lap() {
    laps_.push_back(static_cast<double>(sum_) / 1e3);
    sum_ = 0;
  }
  nlohmann::ordered_json Summary() {
    std::sort(laps_.begin(), laps_.end());
    const auto at = [&](double share) {
      return laps_[static_cast<size_t>(share * static_cast<double>(laps_.size() - 1))];
    };
    return {{"median", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", at(1)}};
  }

 private:
  int64_t sum_ = 0;
  std::vector<double> laps_;
};

class Bench {
 public:
  Bench() : random_(FLAGS_seed) {
    constexpr int kContext = 1024;
    SchedulerOptions options;
    options.mini_batches = FLAGS_mini_batches;
    options.max_batch = FLAGS_running;
    options.max_context = kContext;
    options.num_rworkers = FLAGS_rworkers;
    options.load_control = FLAGS_limit > 0;
    // The mean length that decoding reads: (prompt + half the output) weighted by outputs.
    const double mean_read = FLAGS_equal ? 1 + 256 : 256 + 512 / 3.0;
    options.workload_limit =
        std::max<int64_t>(kContext, static_cast<int64_t>(FLAGS_limit * mean_read * FLAGS_running / FLAGS_rworkers));
    scheduler_ = std::make_unique<Scheduler>(options);
    for (int r = 0; r < FLAGS_rworkers; ++r) scheduler_->RWorkerJoined(r, int64_t{1} << 24);
  }

  void Run() {
    const int fill = 1100;  // over two generations
    for (int step = 0; step < fill + FLAGS_steps; ++step) {
      Step();
      if (step < fill) {
        total_ = plan_prefill_ = plan_pass_ = events_ = Stopwatch();
        continue;
      }
      const SchedulerStats stats = scheduler_->stats();
      decoding_ += static_cast<double>(stats.decoding) / FLAGS_steps;
      for (Stopwatch* watch : {&total_, &plan_prefill_, &plan_pass_, &events_}) watch->Lap();
    }
  }

  nlohmann::ordered_json Report() {
    return {{"bench", "scheduler"},
            {"unit", "us of CPU a step"},
            {"step", total_.Summary()},
            {"plan_prefill", plan_prefill_.Summary()},
            {"plan_pass", plan_pass_.Summary()},
            {"events", events_.Summary()},
            {"limit", 200},
            {"case",
             {{"in_flight", FLAGS_running},
              {"decoding_mean", decoding_},
              {"waiting", FLAGS_waiting},
              {"rworkers", FLAGS_rworkers},
              {"mini_batches", FLAGS_mini_batches},
              {"equal", FLAGS_equal},
              {"workload_limit", scheduler_->stats().workload_limit},
              {"steps", FLAGS_steps}}}};
  }

 private:
  template <typename Work>
  auto Both(Stopwatch& part, Work&& work) {
    return total_.Time([&] { return part.Time(work); });
  }

  void Step() {
    while (waiting_ < FLAGS_waiting) Submit();  // clients, not the step
    for (int m = 0; m < FLAGS_mini_batches; ++m) {
      Both(events_, [&] { Ends(m); });
      Both(events_, [&] {
        for (const PrefillItem& item : prefilling_) scheduler_->PrefillDone(item.sequence);
      });
      prefilling_ = Both(plan_prefill_, [&] { return scheduler_->PlanPrefill(); });
      waiting_ -= static_cast<int>(prefilling_.size());
      PassPlan plan = Both(plan_pass_, [&] { return scheduler_->PlanPass(m); });
      ended_[m].clear();
      for (const PassRow& row : plan.rows) {
        if (--left_[row.sequence] == 0) ended_[m].push_back(row.sequence);
      }
    }
  }

  void Ends(int mini_batch) {
    for (SequenceId id : ended_[mini_batch]) {
      scheduler_->Finished(id);
      scheduler_->BlocksFreed(id);
      left_.erase(id);
    }
  }

  void Submit() {
    const int prompt = FLAGS_equal ? 1 : std::uniform_int_distribution<int>(1, 512)(random_);
    const int output = FLAGS_equal ? 512 : std::uniform_int_distribution<int>(1, 512)(random_);
    CHECK(scheduler_->Submit(++last_, prompt, output).ok());
    left_[last_] = output;
    ++waiting_;
  }

  std::mt19937_64 random_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<SequenceId, int> left_;
  std::unordered_map<int, std::vector<SequenceId>> ended_;  // a mini-batch's, in its last pass
  std::vector<PrefillItem> prefilling_;
  SequenceId last_ = 0;
  int waiting_ = 0;
  double decoding_ = 0;
  Stopwatch total_, plan_prefill_, plan_pass_, events_;
};

int Main() {
  if (FLAGS_running < FLAGS_mini_batches || FLAGS_mini_batches < 1 || FLAGS_rworkers < 1 || FLAGS_waiting < 0 ||
      FLAGS_steps < 1 || !(FLAGS_limit >= 0)) {
    std::fprintf(stderr, "bench_scheduler: --running, --mini_batches, --rworkers and --steps take at least 1\n");
    return 2;
  }
  Bench bench;
  bench.Run();
  std::printf("%s\n", bench.Report().dump().c_str());
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{.name = "bench_scheduler",
                                     .usage =
                                         "CPU time of the scheduler a step, as one JSON line\n"
                                         "  bench_scheduler [--running N] [--waiting N] [--rworkers N] [--equal]\n"
                                         "Exit status: 0 done; 2 usage."};
  if (auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  return fastdecode::Main();
}
