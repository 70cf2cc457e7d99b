// The scheduler under seeded random lives: limits, KV blocks, slots and fairness at every
// pass, checked by a simulation that keeps its own account.
#include "scheduler_sim.h"

#include <gtest/gtest.h>

#include <random>

namespace fastdecode {
namespace {

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool OneIn(int n) { return Draw(1, n) == 1; }

 private:
  std::mt19937 random_;
};

SimOptions RandomCluster(Dice& dice, uint32_t seed) {
  SimOptions options;
  SchedulerOptions& scheduler = options.scheduler;
  scheduler.mini_batches = dice.Draw(1, 3);
  scheduler.max_batch = dice.Draw(1, 40);
  scheduler.prefill_tokens_per_step = dice.Draw(16, 400);
  scheduler.max_context = dice.Draw(16, 256);
  scheduler.block_tokens = dice.Draw(1, 32);
  scheduler.num_rworkers = dice.Draw(1, 3);
  scheduler.load_control = !dice.OneIn(5);
  scheduler.pacing = !dice.OneIn(4);
  scheduler.interval_steps = dice.OneIn(3) ? dice.Draw(1, 20) : 0;
  if (dice.OneIn(2)) scheduler.workload_limit = dice.Draw(scheduler.max_context, 8 * scheduler.max_context);
  for (int r = 0; r < scheduler.num_rworkers; ++r) {
    const int largest = scheduler.max_context / scheduler.block_tokens + 1;
    options.kv_blocks.push_back(dice.OneIn(4) ? dice.Draw(1, 2 * largest) : dice.Draw(largest, 12 * largest));
    options.speeds.push_back(dice.OneIn(3) ? dice.Draw(5, 20) / 10.0 : 1.0);
  }
  options.max_prefill_passes = dice.Draw(1, 12);
  options.max_free_passes = dice.Draw(0, 6);
  options.seed = seed;
  return options;
}

std::vector<SimRequest> RandomRequests(Dice& dice, int count, int context) {
  std::vector<SimRequest> requests;
  const int arrivals = dice.OneIn(2) ? 0 : dice.Draw(1, 1000);
  for (int i = 0; i < count; ++i) {
    SimRequest request;
    request.arrival_round = dice.Draw(0, arrivals);
    request.prompt = dice.Draw(1, context - 1);
    request.max_tokens = dice.OneIn(10) ? 1 : dice.Draw(1, context - request.prompt);
    request.tokens = dice.OneIn(3) ? dice.Draw(1, request.max_tokens) : request.max_tokens;
    if (dice.OneIn(10)) request.cancel_round = request.arrival_round + dice.Draw(0, 300);
    requests.push_back(request);
  }
  return requests;
}

// One after another, each with its prefill and blocks' release: nobody may wait longer.
int64_t SerialRounds(const SimOptions& options, const std::vector<SimRequest>& requests) {
  int64_t rounds = 2000;  // arrivals and returning R-workers
  for (const SimRequest& request : requests) {
    rounds += request.max_tokens + options.max_prefill_passes + options.max_free_passes + 2;
  }
  return rounds;
}

void ExpectSound(const SimResult& result, size_t requests) {
  for (const std::string& violation : result.violations) ADD_FAILURE() << violation;
  EXPECT_EQ(result.finished + result.cancelled + result.lost + result.refused, static_cast<int64_t>(requests));
}

TEST(SchedulerSimTest, RandomLives) {
  int64_t finished = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    SimOptions options = RandomCluster(dice, seed);
    const auto requests = RandomRequests(dice, dice.Draw(1, 120), options.scheduler.max_context);
    options.max_rounds = SerialRounds(options, requests);
    const SimResult result = SchedulerSim(options, requests).Run();
    ExpectSound(result, requests.size());
    EXPECT_EQ(result.lost, 0);
    finished += result.finished;
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(finished, 15'000);
}

TEST(SchedulerSimTest, RWorkersComeAndGo) {
  int64_t lost = 0;
  for (uint32_t seed = 1000; seed < 1300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    SimOptions options = RandomCluster(dice, seed);
    for (int r = 0; r < options.scheduler.num_rworkers; ++r) {
      int64_t round = dice.Draw(1, 100);
      for (int i = dice.Draw(0, 3); i > 0; --i) {
        options.events.push_back({.round = round, .rworker = r, .kv_blocks = 0});
        round += dice.Draw(1, 200);
        const int blocks = static_cast<int>(options.kv_blocks[static_cast<size_t>(r)]);
        options.events.push_back({.round = round, .rworker = r, .kv_blocks = dice.Draw(blocks / 2 + 1, blocks * 2)});
        round += dice.Draw(1, 200);
      }
    }
    const auto requests = RandomRequests(dice, dice.Draw(1, 120), options.scheduler.max_context);
    options.max_rounds = SerialRounds(options, requests);
    const SimResult result = SchedulerSim(options, requests).Run();
    ExpectSound(result, requests.size());
    lost += result.lost;
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(lost, 500);
}

// 512 requests with the lengths of a real trace, three R-workers.
TEST(SchedulerSimTest, AzureConversation) {
  for (int mini_batches = 1; mini_batches <= 3; ++mini_batches) {
    for (int early_ends = 0; early_ends <= 1; ++early_ends) {
      SimOptions options;
      options.scheduler = {.mini_batches = mini_batches, .max_batch = 64, .max_context = 512, .num_rworkers = 3};
      options.kv_blocks = {300, 300, 400};
      auto requests = TraceRequests(FASTDECODE_TRACES "azure_conv_2023.csv", 512, options.scheduler.max_context);
      for (size_t i = 0; early_ends && i < requests.size(); ++i) {
        requests[i].tokens = 1 + static_cast<int>((i * 7919) % static_cast<size_t>(requests[i].max_tokens));
      }
      const SimResult result = SchedulerSim(options, requests).Run();
      ExpectSound(result, requests.size());
      EXPECT_EQ(result.finished, 512);
    }
  }
}

// The paper's figure: equal lengths, all submitted at once. Started together they peak at
// B*S; paced, at B(S+F)/2.
TEST(SchedulerSimTest, EqualLengthsPeakAtHalf) {
  constexpr int kBatch = 256, kLength = 512;
  SimOptions options;
  options.scheduler = {.mini_batches = 2, .max_batch = kBatch, .max_context = kLength, .num_rworkers = 2};
  options.kv_blocks = {1 << 20, 1 << 20};
  options.max_prefill_passes = 1;
  const std::vector<SimRequest> requests(4 * kBatch, {.prompt = 1, .max_tokens = kLength - 1, .tokens = kLength - 1});
  const SimResult paced = SchedulerSim(options, requests).Run();
  ExpectSound(paced, requests.size());
  options.scheduler.load_control = false;
  const SimResult together = SchedulerSim(options, requests).Run();
  ExpectSound(together, requests.size());

  const double half = kBatch / 2 * (kLength + 4.0 * kLength / kBatch) / 2;  // of each of two R-workers
  EXPECT_GT(static_cast<double>(together.peak_workload), 1.9 * half);
  EXPECT_LT(static_cast<double>(paced.peak_workload), 1.02 * half);
  EXPECT_GT(static_cast<double>(paced.peak_workload), 0.9 * half);
  EXPECT_GE(paced.max_in_flight, kBatch * 95 / 100);
}

}  // namespace
}  // namespace fastdecode
