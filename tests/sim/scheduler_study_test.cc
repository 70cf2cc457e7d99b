// What load control brings, by simulation with a simple cost model: prints the table of
// docs/scheduler.md and asserts what that page concludes from it. Nothing is timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "scheduler_sim.h"

namespace fastdecode {
namespace {

constexpr int kBatch = 256, kRWorkers = 2, kContext = 512;

struct Workload {
  std::string name;
  std::vector<SimRequest> requests;
};

// Tokens that all steps of all requests read, and the number of steps: their ratio is the mean
// length of a sequence that decodes.
double MeanDecodingLength(const std::vector<SimRequest>& requests) {
  double read = 0;
  double steps = 0;
  for (const SimRequest& request : requests) {
    const double n = request.tokens;
    read += n * (request.prompt - 1) + n * (n + 1) / 2;
    steps += n;
  }
  return read / steps;
}

struct Outcome {
  SimResult off, limit_only, paced;
};

double Throughput(const SimResult& result) { return static_cast<double>(result.decoded_tokens) / result.time; }

SimResult Simulate(SimOptions options, const Workload& workload, bool load_control, bool pacing) {
  options.scheduler.load_control = load_control;
  options.scheduler.pacing = pacing;
  SimResult result = SchedulerSim(options, workload.requests).Run();
  for (const std::string& violation : result.violations) ADD_FAILURE() << violation;
  EXPECT_EQ(result.finished, static_cast<int64_t>(workload.requests.size()));
  return result;
}

// `scale`: the workload limit, in units of what a full batch of these sequences reads in the
// mean; 0: the automatic one. The R-part of that limit takes as long as the S-part of a full
// mini-batch, one unit of time, half of which does not depend on the number of rows.
Outcome Study(const Workload& workload, double scale) {
  SimOptions options;
  options.scheduler = {.mini_batches = 2,
                       .max_batch = kBatch,
                       .prefill_tokens_per_step = 1 << 20,
                       .max_context = kContext,
                       .num_rworkers = kRWorkers};
  options.kv_blocks.assign(kRWorkers, 1 << 20);
  options.check_books = false;
  options.max_prefill_passes = 2;
  const double steady = kBatch * MeanDecodingLength(workload.requests) / kRWorkers;
  const double limit = std::max(1.0 * kContext, steady * (scale > 0 ? scale : 1.0));
  if (scale > 0) options.scheduler.workload_limit = static_cast<int64_t>(limit);
  options.cost = {.s_base = 0.5, .s_row = 0.5 / (kBatch / 2), .r_token = 2 / limit};

  const Outcome outcome = {.off = Simulate(options, workload, false, false),
                           .limit_only = Simulate(options, workload, true, false),
                           .paced = Simulate(options, workload, true, true)};
  std::printf("%-24s %5s |", workload.name.c_str(), scale > 0 ? std::to_string(scale).substr(0, 3).c_str() : "auto");
  for (const SimResult* result : {&outcome.off, &outcome.limit_only, &outcome.paced}) {
    std::printf(" %6.1f %5.0f %7.2f %7.2f |", Throughput(*result), result->mean_rows,
                static_cast<double>(result->peak_workload) / limit, result->max_pass_time);
  }
  std::printf("\n");
  return outcome;
}

// Twelve batches; the declared length drawn from [low, 1] of the context, and a sequence
// really makes [made, 1] of it.
Workload Lengths(const std::string& name, double low, double made) {
  std::mt19937 random(1);
  const auto draw = [&](double from) { return std::uniform_real_distribution<double>(from, 1.0)(random); };
  Workload workload{name, {}};
  for (int i = 0; i < 12 * kBatch; ++i) {
    const int declared = std::max(2, static_cast<int>((kContext - 1) * (low < 1 ? draw(low) : 1.0)));
    const int tokens = std::max(2, static_cast<int>(declared * (made < 1 ? draw(made) : 1.0)));
    workload.requests.push_back({.prompt = 1, .max_tokens = declared, .tokens = tokens});
  }
  return workload;
}

Workload Azure(bool early_ends) {
  Workload workload{early_ends ? "Azure, 1/3 of max_tokens" : "Azure", {}};
  workload.requests = TraceRequests(FASTDECODE_TRACES "azure_conv_2023.csv", 2000, kContext);
  for (SimRequest& request : workload.requests) {
    if (early_ends) request.max_tokens = std::min(kContext - request.prompt, 3 * request.tokens);
  }
  return workload;
}

TEST(SchedulerStudyTest, Table) {
  std::printf("%-24s %5s |", "lengths", "limit");
  for (const char* rule : {"off", "limit", "paced"}) {
    std::printf(" %6s %5s %7s %7s |", rule, "rows", "peak W", "longest");
  }
  std::printf("\n");

  // The paper's case: more tokens than both, at half the peak.
  for (const double scale : {0.7, 1.0, 0.0}) {
    const Outcome equal = Study(Lengths("equal", 1, 1), scale);
    EXPECT_GT(Throughput(equal.paced), 1.3 * Throughput(equal.limit_only));
    EXPECT_GT(Throughput(equal.paced), 1.05 * Throughput(equal.off));
    EXPECT_LT(static_cast<double>(equal.paced.peak_workload), 0.52 * static_cast<double>(equal.off.peak_workload));
  }
  const Outcome nearly_equal = Study(Lengths("0.8 .. 1", 0.8, 1), 1.0);
  EXPECT_GT(Throughput(nearly_equal.paced), 1.05 * Throughput(nearly_equal.limit_only));
  EXPECT_GT(Throughput(nearly_equal.paced), Throughput(nearly_equal.off));

  // Lengths that differ spread the ages by themselves.
  for (const double low : {0.5, 0.0}) {
    const Outcome varied = Study(Lengths(low > 0 ? "0.5 .. 1" : "0 .. 1", low, 1), 1.0);
    EXPECT_DOUBLE_EQ(Throughput(varied.paced), Throughput(varied.limit_only));
    EXPECT_GT(Throughput(varied.paced), 0.97 * Throughput(varied.off));
    EXPECT_LT(varied.paced.max_pass_time, 1.01);
  }
  Study(Lengths("equal, end at 0.5 .. 1", 1, 0.5), 1.0);
  Study(Lengths("equal, end at 0.5 .. 1", 1, 0.5), 0.0);
  for (const double scale : {0.7, 1.0}) {
    const Outcome azure = Study(Azure(false), scale);
    EXPECT_GT(Throughput(azure.paced), 0.97 * Throughput(azure.off));
    EXPECT_LE(azure.paced.max_pass_time, azure.off.max_pass_time);
  }
  Study(Azure(false), 0.0);
  Study(Azure(true), 1.0);
  Study(Azure(true), 0.0);
}

}  // namespace
}  // namespace fastdecode
