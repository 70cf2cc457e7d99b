// What load control brings, by the simulator with a simple cost model: the table of
// docs/scheduler.md. `scheduler_study_test` prints it; the relations that the page draws
// from it are asserted.
#include <gtest/gtest.h>

#include <cstdio>

#include "scheduler_sim.h"

namespace fastdecode {
namespace {

enum class Rule { kOff, kLimitOnly, kPaced };

constexpr const char* kRuleNames[] = {"off", "limit only", "paced"};

struct Case {
  const char* name;
  SimOptions options;
  std::vector<SimRequest> requests;
};

SimResult Study(Case study, Rule rule) {
  study.options.scheduler.load_control = rule != Rule::kOff;
  study.options.scheduler.pacing = rule == Rule::kPaced;
  study.options.check_books = false;
  SimResult result = SchedulerSim(study.options, study.requests).Run();
  for (const std::string& violation : result.violations) ADD_FAILURE() << violation;
  std::printf("%-34s %-10s %8.1f %7.0f %9ld %9.0f %8.2f %7ld %7ld\n", study.name, kRuleNames[static_cast<int>(rule)],
              static_cast<double>(result.decoded_tokens) / result.time, result.mean_rows, result.peak_workload,
              result.mean_workload, result.max_pass_time, result.longest_wait_rounds, result.rounds);
  return result;
}

// One unit of time is the S-part of a full mini-batch of 512 rows; half of it does not depend
// on the rows. The R-part of `balanced` cached tokens takes as long.
CostModel Costs(double balanced) { return {.s_base = 0.5, .s_row = 0.5 / 512, .r_token = 1 / balanced}; }

Case Equal(const char* name, int batch, int length, int64_t limit, double balanced, int count) {
  Case study{.name = name, .options = {}, .requests = {}};
  study.options.scheduler = {
      .mini_batches = 2, .max_batch = batch, .max_context = length, .num_rworkers = 4, .workload_limit = limit};
  study.options.kv_blocks.assign(4, 1 << 20);
  study.options.max_prefill_passes = 1;
  study.options.cost = Costs(balanced);
  study.requests.assign(static_cast<size_t>(count), {.prompt = 1, .max_tokens = length - 1, .tokens = length - 1});
  return study;
}

Case Azure(const char* name, int batch, int64_t limit, double balanced, bool early) {
  Case study{.name = name, .options = {}, .requests = AzureConversation(FASTDECODE_AZURE_TRACE, 2000, 4096)};
  study.options.scheduler = {
      .mini_batches = 2, .max_batch = batch, .max_context = 4096, .num_rworkers = 4, .workload_limit = limit};
  study.options.kv_blocks.assign(4, 1 << 20);
  study.options.max_prefill_passes = 1;
  study.options.scheduler.prefill_tokens_per_step = 1 << 20;
  study.options.cost = Costs(balanced);
  auto more = study.requests;
  study.requests.insert(study.requests.end(), more.begin(), more.end());
  if (early) {
    for (auto& request : study.requests) request.max_tokens = std::min(4096 - request.prompt, 3 * request.tokens);
  }
  return study;
}

TEST(SchedulerStudy, Table) {
  std::printf("%-34s %-10s %8s %7s %9s %9s %8s %7s %7s\n", "case", "rule", "tokens/u", "rows", "peak W", "mean W",
              "max pass", "wait", "rounds");
  const double half = 1024.0 / 4 * 1024 / 2;
  std::vector<Case> cases;
  cases.push_back(Equal("equal, auto", 1024, 1024, 0, half / 2, 4096));
  cases.push_back(Equal("equal, limit 1.0", 1024, 1024, static_cast<int64_t>(half), half / 2, 4096));
  cases.push_back(Equal("equal, limit 0.7", 1024, 1024, static_cast<int64_t>(0.7 * half), 0.7 * half / 2, 4096));
  cases.push_back(Equal("equal, limit 1.5", 1024, 1024, static_cast<int64_t>(1.5 * half), 1.5 * half / 2, 4096));
  cases.push_back(Equal("equal, 20 batches", 1024, 1024, 0, half / 2, 20480));
  const double azure = 1024.0 / 4 * 1200;
  cases.push_back(Azure("azure, auto", 1024, 0, azure / 2, false));
  cases.push_back(Azure("azure, limit 1.0", 1024, static_cast<int64_t>(azure), azure / 2, false));
  cases.push_back(Azure("azure, limit 0.7", 1024, static_cast<int64_t>(0.7 * azure), 0.7 * azure / 2, false));
  cases.push_back(Azure("azure, limit 0.4", 1024, static_cast<int64_t>(0.4 * azure), 0.4 * azure / 2, false));
  cases.push_back(Azure("azure, auto, early", 1024, 0, azure / 2, true));
  cases.push_back(Azure("azure, limit 0.7, early", 1024, static_cast<int64_t>(0.7 * azure), 0.7 * azure / 2, true));
  for (const Case& study : cases) {
    for (const Rule rule : {Rule::kOff, Rule::kLimitOnly, Rule::kPaced}) Study(study, rule);
  }
}

}  // namespace
}  // namespace fastdecode
