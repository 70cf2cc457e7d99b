// Placement by lowest peak against least-loaded and round-robin, on the real traces: prints the
// table of docs/scheduler.md and asserts what that page concludes. Nothing is timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "scheduler_sim.h"

namespace fastdecode {
namespace {

struct Case {
  std::string name;
  std::string trace;
  size_t requests = 0;
  int context = 0;
  int batch = 0;
  std::vector<double> speeds;  // an R-worker's
};

struct Outcome {
  double peak = 0;     // W of the fullest R-worker per unit of speed, over the mean of all
  double longest = 0;  // pass
  double tokens = 0;   // a unit of time
};

// Answers of one token (two of Mooncake's) are left out: they come and go in one step, a peak whatever the rule.
std::vector<SimRequest> RequestsOf(const Case& one) {
  std::vector<SimRequest> requests = TraceRequests(one.trace, one.requests, one.context);
  std::erase_if(requests, [](const SimRequest& request) { return request.max_tokens == 1; });
  return requests;
}

// Without load control: placement alone decides. The R-part of the mean W takes as long as the S-part.
Outcome SimulateOnce(const Case& one, PlacementRule rule, bool load_control, double mean_workload, uint32_t seed) {
  SimOptions options;
  options.seed = seed;
  options.scheduler = {.mini_batches = 2,
                       .max_batch = one.batch,
                       .prefill_tokens_per_step = 1 << 20,
                       .max_context = one.context,
                       .num_rworkers = static_cast<int>(one.speeds.size()),
                       .load_control = load_control,
                       .placement = rule};
  options.kv_blocks.assign(one.speeds.size(), 1 << 20);
  options.speeds = one.speeds;
  options.check_books = false;
  options.max_prefill_passes = 2;
  options.max_free_passes = 0;
  if (load_control) options.scheduler.workload_limit = static_cast<int64_t>(1.1 * mean_workload);
  if (mean_workload > 0) options.cost = {.s_base = 1, .s_row = 0, .r_token = 2 / mean_workload};
  const SimResult result = SchedulerSim(options, RequestsOf(one)).Run();
  for (const std::string& violation : result.violations) ADD_FAILURE() << violation;
  double speeds = 0;
  for (const double speed : one.speeds) speeds += speed;
  // mean_workload of the result is over R-workers; per unit of speed it is this.
  const double mean = result.mean_workload * static_cast<double>(one.speeds.size()) / speeds;
  return {result.peak_relative_workload / mean, result.max_pass_time,
          static_cast<double>(result.decoded_tokens) / std::max(1e-9, result.time)};
}

// How long prefills take is drawn, and of few long sequences a peak says as much of that as of the rule: the mean.
Outcome Simulate(const Case& one, PlacementRule rule, bool load_control, double mean_workload) {
  constexpr uint32_t kSeeds = 5;
  Outcome mean;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const Outcome outcome = SimulateOnce(one, rule, load_control, mean_workload, seed);
    mean.peak += outcome.peak / kSeeds;
    mean.longest += outcome.longest / kSeeds;
    mean.tokens += outcome.tokens / kSeeds;
  }
  return mean;
}

double MeanWorkload(const Case& one) {
  SimOptions options;
  options.scheduler = {.mini_batches = 2,
                       .max_batch = one.batch,
                       .prefill_tokens_per_step = 1 << 20,
                       .max_context = one.context,
                       .num_rworkers = 1,
                       .load_control = false};
  options.kv_blocks = {1 << 24};
  options.check_books = false;
  double speeds = 0;
  for (const double speed : one.speeds) speeds += speed;
  return SchedulerSim(options, RequestsOf(one)).Run().mean_workload / speeds;
}

TEST(PlacementStudyTest, Table) {
  const std::string azure = FASTDECODE_TRACES "azure_conv_2023.csv";
  const std::string mooncake = FASTDECODE_TRACES "mooncake_conv.jsonl";
  const std::vector<Case> cases = {
      {"Azure, 4 R-workers", azure, 2000, 2048, 128, {1, 1, 1, 1}},
      {"Azure, 8 R-workers", azure, 2000, 2048, 128, {1, 1, 1, 1, 1, 1, 1, 1}},
      {"Azure, 4 of unequal speed", azure, 2000, 2048, 128, {1, 1, 2, 0.5}},
      {"Mooncake, 4 R-workers", mooncake, 200, 32768, 32, {1, 1, 1, 1}},
  };
  std::printf("| requests | rule | peak W | longest pass | tokens | with a limit: peak W | longest | tokens |\n");
  for (const Case& one : cases) {
    const double mean = MeanWorkload(one);
    std::vector<Outcome> free;
    for (const auto& [name, rule] :
         {std::pair("lowest peak", PlacementRule::kLowestPeak), std::pair("least loaded", PlacementRule::kLeastLoaded),
          std::pair("round-robin", PlacementRule::kRoundRobin)}) {
      free.push_back(Simulate(one, rule, false, mean));
      const Outcome limited = Simulate(one, rule, true, mean);
      std::printf("| %s | %s | %.2f | %.2f | %.1f | %.2f | %.2f | %.1f |\n", one.name.c_str(), name, free.back().peak,
                  free.back().longest, free.back().tokens, limited.peak, limited.longest, limited.tokens);
    }
    EXPECT_LT(free[0].peak, free[2].peak) << one.name << ": round-robin";
    EXPECT_LT(free[0].peak, 1.05 * free[1].peak) << one.name << ": least loaded";
    for (const Outcome& other : {free[1], free[2]}) {
      EXPECT_LT(free[0].longest, 0.9 * other.longest) << one.name;
      EXPECT_GT(free[0].tokens, 1.05 * other.tokens) << one.name;
    }
  }
}

}  // namespace
}  // namespace fastdecode
