// The simulator against what can be computed by hand, and its own promises.
#include "sim/cluster_sim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace fastdecode::sim {
namespace {

using testing::HasSubstr;

constexpr double kMs = 1e-3;

plan::Curve Constant(double seconds) { return plan::Curve({{1, seconds, 0}, {1e9, seconds, 0}}); }

// A layer takes 1 ms of the device whatever its rows, R 1 us a cached token, the wire nothing.
plan::ModelProfile Profile() {
  plan::ModelProfile profile;
  profile.key = {.hidden_size = 64,
                 .intermediate_size = 128,
                 .vocab_size = 100,
                 .num_heads = 4,
                 .num_kv_heads = 4,
                 .head_dim = 16,
                 .dtype = "f16",
                 .device = "cuda"};
  profile.layer = Constant(1 * kMs);
  profile.rworkers.emplace_back().attend.seconds_per_token = 1e-6;
  return profile;
}

SimOptions Options(int mini_batches, int batch, int rworkers) {
  SimOptions options;
  options.scheduler = {.mini_batches = mini_batches,
                       .max_batch = batch,
                       .prefill_tokens_per_step = 1 << 20,
                       .max_context = 4096,
                       .num_rworkers = rworkers,
                       .load_control = false};
  options.layers = 10;
  options.kv_blocks = 1 << 20;
  return options;
}

std::vector<SimRequest> Equal(int count, int prompt, int tokens) {
  return std::vector<SimRequest>(static_cast<size_t>(count), {0, prompt, tokens, tokens});
}

SimReport Simulate(const plan::ModelProfile& profile, const SimOptions& options, std::vector<SimRequest> requests) {
  return ClusterSim(profile, options, std::move(requests), nullptr).Run();
}

// One mini-batch: nothing overlaps. 2 sequences, steps read 2 * (99 + j) tokens, j = 1 .. 4.
TEST(ClusterSim, OneMiniBatchTakesTheSum) {
  const SimReport report = Simulate(Profile(), Options(1, 2, 1), Equal(2, 100, 4));
  const Measurement& m = report.measured;
  EXPECT_EQ(m.output_tokens, 8);
  EXPECT_EQ(m.passes, 4);
  const Nanos r_part = 10 * 2 * (100 + 101 + 102 + 103) * 1000;
  EXPECT_EQ(m.wall, 4 * 10 * 1'000'000 + r_part);
  EXPECT_EQ(m.s_part, 4 * 10 * 1'000'000);
  EXPECT_EQ(m.r_part, r_part);
  EXPECT_EQ(m.r_busy[0], r_part);
  EXPECT_EQ(m.workload_peak, 206);
  EXPECT_NEAR(m.step.max_ms(), 10 + 2.06, 1e-6);
  EXPECT_EQ(report.unfinished, 0);
}

// Two mini-batches hide the shorter part behind the longer one: 2 ms of device a layer against
// 2 * 0.5 ms of R-part, and against 2 * 3 ms.
TEST(ClusterSim, TwoMiniBatchesTakeTheLongerPart) {
  for (const auto& [prompt, layer_ms] : {std::pair(500, 2.0), std::pair(3000, 6.0)}) {
    const SimReport report = Simulate(Profile(), Options(2, 2, 1), Equal(2, prompt, 101));
    const double step_ms = report.measured.step.mean_ms();
    EXPECT_NEAR(step_ms, 10 * layer_ms, 0.04 * 10 * layer_ms) << prompt;
  }
}

// With an event a step instead of a layer the long run is the same.
TEST(ClusterSim, AnEventAStepTakesAsLong) {
  SimOptions options = Options(2, 64, 4);
  const SimReport fine = Simulate(Profile(), options, Equal(128, 200, 100));
  options.layers_per_event = options.layers;
  const SimReport coarse = Simulate(Profile(), options, Equal(128, 200, 100));
  EXPECT_LT(coarse.events * 5, fine.events);
  EXPECT_EQ(coarse.measured.output_tokens, fine.measured.output_tokens);
  EXPECT_NEAR(static_cast<double>(coarse.measured.wall), static_cast<double>(fine.measured.wall),
              0.05 * static_cast<double>(fine.measured.wall));
}

// Rows of 4 * 64 f16 numbers over 1 GB/s and 100 us of latency: 10 exchanges a pass.
TEST(ClusterSim, TheWireCosts) {
  plan::ModelProfile profile = Profile();
  profile.rworkers[0].wire = plan::Curve({{1, 100e-6, 0}, {1e9 + 1, 1 + 100e-6, 0}});
  const SimReport without = Simulate(Profile(), Options(1, 100, 1), Equal(100, 10, 1));
  const SimReport with = Simulate(profile, Options(1, 100, 1), Equal(100, 10, 1));
  const double bytes = 100 * 4 * 64 * 2;
  EXPECT_NEAR(static_cast<double>(with.measured.wire), 10 * (100e3 + bytes), 10);
  // The wall is longer by the acknowledgement of freed blocks too, which no request waits for.
  EXPECT_NEAR(static_cast<double>(with.measured.wall - without.measured.wall), 10 * (100e3 + bytes), 10);
  EXPECT_EQ(with.measured.wire_bytes, static_cast<int64_t>(10 * bytes));
}

// Four mini-batches whose rows take the link far longer than anything else: it is full, and never more than that,
// whichever share of an exchange the R-worker's thread is taken.
TEST(ClusterSim, TheLinkCarriesNoMoreThanItCan) {
  plan::ModelProfile profile = Profile();
  profile.layer = Constant(1e-6);
  profile.rworkers[0].attend.seconds_per_token = 1e-12;
  profile.rworkers[0].wire = plan::Curve({{1, 1e-9, 0}, {1e9 + 1, 1 + 1e-9, 0}});
  for (const double share : {0.0, 0.5, 1.0}) {
    SimOptions options = Options(4, 1024, 8);
    options.wire_on_rworker = share;
    const Measurement m = Simulate(profile, options, Equal(1024, 1, 20)).measured;
    const double out_s = 0.75 * static_cast<double>(m.wire_bytes) / 1e9;  // Q, K, V
    EXPECT_NEAR(out_s, static_cast<double>(m.wall) / 1e9, 0.1 * out_s) << share;
    EXPECT_LE(out_s * (1 - 1e-4), static_cast<double>(m.wall) / 1e9) << share;  // a first byte is latency
    EXPECT_LT(static_cast<double>(m.r_busy[0]), 0.01 * static_cast<double>(m.wall)) << "in its kernels";
  }
}

// 10 prompts of 100 ms, one at a time on the device; those that are there decode meanwhile.
TEST(ClusterSim, DecodingGoesOnBesidePrefill) {
  plan::ModelProfile profile = Profile();
  profile.prefill = plan::Curve({{1, 1e-4, 0}, {1001, 1e-1 + 1e-4, 0}});
  for (const int mini_batches : {1, 2}) {
    SimOptions options = Options(mini_batches, 10, 1);
    options.scheduler.prefill_tokens_per_step = 100;
    const SimReport report = Simulate(profile, options, Equal(10, 101, 5));
    EXPECT_EQ(report.measured.ended, 10);
    EXPECT_LT(report.measured.ttft.PercentileMs(0.1), 250) << mini_batches;
    EXPECT_GT(report.measured.ttft.max_ms(), 900) << mini_batches;
  }
}

TEST(ClusterSim, SharesSumToTheWall) {
  plan::ModelProfile profile = Profile();
  profile.copy_in = profile.copy_out = Constant(0.1 * kMs);
  profile.prefill = plan::Curve({{1, 1e-6, 0}, {1000, 1e-3, 0}});
  profile.rworkers[0].wire = plan::Curve({{1, 100e-6, 0}, {1e9 + 1, 1 + 100e-6, 0}});
  SimOptions options = Options(2, 32, 3);
  options.device_jitter = options.rworker_jitter = 0.1;
  std::vector<SimRequest> requests = Equal(100, 50, 40);
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].arrival = static_cast<Nanos>(i) * (i < 80 ? 20'000'000 : 2'000'000'000);
  for (const double from : {0.0, 0.3}) {
    options.measure_from = from;
    const Measurement m = Simulate(profile, options, requests).measured;
    EXPECT_EQ(m.s_part + m.copy + m.r_part + m.wire + m.scheduler + m.idle, m.wall);
    EXPECT_GT(m.idle, 0);
    EXPECT_GT(m.copy, 0);
  }
}

TEST(ClusterSim, SameSeedSameBytes) {
  SimOptions options = Options(2, 32, 5);
  options.scheduler.load_control = true;
  options.device_jitter = options.rworker_jitter = 0.2;
  options.straggling = 0.1;
  options.straggler_factor = 3;
  options.faults.push_back({.kind = Fault::Kind::kLost, .rworker = 2, .at_s = 0.5, .for_s = 1});
  const auto run = [&](uint64_t seed, const char* name) {
    options.seed = seed;
    const std::string path = testing::TempDir() + name;
    auto file = ChromeTrace::Create(path);
    EXPECT_TRUE(file.ok());
    TimelineTrace timeline(std::move(*file), 2, 5);
    const std::string json =
        ToJson(ClusterSim(Profile(), options, Equal(200, 100, 50), &timeline).Run(), options, "").dump();
    EXPECT_TRUE(timeline.Close().ok());
    std::ifstream written(path);
    return json + std::string(std::istreambuf_iterator<char>(written), {});
  };
  const std::string first = run(1, "a");
  EXPECT_GT(first.size(), 100'000u);
  EXPECT_EQ(first, run(1, "a"));
  EXPECT_NE(first, run(2, "a"));
}

// The sequences of a lost R-worker end, those of the others don't notice; it comes back empty.
TEST(ClusterSim, ALostRWorkerCostsItsOwnSequences) {
  SimOptions options = Options(2, 40, 4);
  options.faults.push_back({.kind = Fault::Kind::kLost, .rworker = 1, .at_s = 0.105, .for_s = 0.4});
  const SimReport report = Simulate(Profile(), options, Equal(200, 100, 60));
  EXPECT_EQ(report.measured.lost, 10) << "40 over 4 R-workers";
  EXPECT_EQ(report.measured.ended, 190);
  EXPECT_EQ(report.unfinished, 0);
}

TEST(ClusterSim, WithoutRWorkersTheRestIsUnfinished) {
  SimOptions options = Options(2, 4, 1);
  options.faults.push_back({.kind = Fault::Kind::kLost, .rworker = 0, .at_s = 0.1});
  const SimReport report = Simulate(Profile(), options, Equal(10, 100, 60));
  EXPECT_EQ(report.measured.lost, 4);
  EXPECT_EQ(report.unfinished, 6);
}

// All wait for the slowest: one R-worker at a third of its speed.
TEST(ClusterSim, AStragglerHoldsEverybodyUp) {
  SimOptions options = Options(1, 4, 4);
  const SimReport even = Simulate(Profile(), options, Equal(4, 3000, 50));
  options.faults.push_back({.kind = Fault::Kind::kSlow, .rworker = 3, .factor = 3});
  const SimReport uneven = Simulate(Profile(), options, Equal(4, 3000, 50));
  EXPECT_NEAR(even.measured.step.mean_ms(), 10 * (1 + 3.025), 0.1);
  EXPECT_NEAR(uneven.measured.step.mean_ms(), 10 * (1 + 3 * 3.025), 0.3);
}

// Faults of one R-worker may overlap: the end of one is not the end of the other.
TEST(ClusterSim, OverlappingFaultsAddUp) {
  SimOptions options = Options(1, 4, 4);
  options.faults = {{.kind = Fault::Kind::kSlow, .rworker = 3, .factor = 2},
                    {.kind = Fault::Kind::kSlow, .rworker = 3, .at_s = 0.1, .for_s = 0.2, .factor = 1.5}};
  const SimReport slow = Simulate(Profile(), options, Equal(4, 3000, 50));
  EXPECT_NEAR(slow.measured.step.PercentileMs(0.5), 10 * (1 + 2 * 3.025), 1);
  EXPECT_NEAR(slow.measured.step.max_ms(), 10 * (1 + 3 * 3.0), 0.5);
  options = Options(2, 4, 1);
  options.faults = {{.kind = Fault::Kind::kLost, .rworker = 0, .at_s = 0.1, .for_s = 0.2},
                    {.kind = Fault::Kind::kLost, .rworker = 0, .at_s = 0.2}};
  const SimReport lost = Simulate(Profile(), options, Equal(10, 100, 60));
  EXPECT_EQ(lost.measured.lost, 4);
  EXPECT_EQ(lost.unfinished, 6) << "the second loss is for good";
}

TEST(ClusterSim, AClosedLoopKeepsSoMany) {
  SimOptions options = Options(2, 64, 2);
  options.in_flight = 8;
  const SimReport report = Simulate(Profile(), options, Equal(64, 10, 20));
  EXPECT_EQ(report.measured.ended, 64);
  EXPECT_LE(report.measured.decode_rows, 8 * report.measured.passes);
  EXPECT_EQ(report.measured.workload_peak, 4 * (10 + 19)) << "4 on each R-worker";
}

// One that is refused takes nobody's place.
TEST(ClusterSim, AClosedLoopGoesOnBehindWhatIsTooLong) {
  SimOptions options = Options(2, 64, 1);
  options.in_flight = 1;
  options.scheduler.load_control = true;
  options.scheduler.workload_limit = 100;
  std::vector<SimRequest> requests = Equal(4, 10, 20);
  requests[1].prompt = 1000;
  const SimReport report = Simulate(Profile(), options, requests);
  EXPECT_EQ(report.measured.refused, 1);
  EXPECT_EQ(report.measured.ended, 3);
  EXPECT_EQ(report.unfinished, 0);
}

TEST(Faults, Texts) {
  const auto loss = ParseLoss("3@12.5+2");
  ASSERT_TRUE(loss.ok());
  EXPECT_EQ(loss->rworker, 3);
  EXPECT_EQ(loss->at_s, 12.5);
  EXPECT_EQ(loss->for_s, 2);
  EXPECT_EQ(ParseLoss("4@20")->for_s, 0);
  const auto slow = ParseSlowdown("7x2.5@10+4");
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(slow->factor, 2.5);
  EXPECT_EQ(slow->at_s, 10);
  EXPECT_EQ(ParseSlowdown("7x2")->at_s, 0);
  for (const char* text : {"", "3", "x@1", "-1@2", "3@-1", "3@1+0", "3@1+", "3@1 ", "3@nan", "4294967299@1", " 3@1"}) {
    EXPECT_FALSE(ParseLoss(text).ok()) << text;
  }
  for (const char* text : {"3", "3x", "3x0", "3x-1", "3xnan", "3x2@", "3x2+1"}) {
    EXPECT_FALSE(ParseSlowdown(text).ok()) << text;
  }
  EXPECT_THAT(ParseLoss("3").status().message(), HasSubstr("as in 3@12.5+2"));
}

TEST(Requests, ATraceIsRepeatedInOrder) {
  const std::string path = testing::TempDir() + "trace";
  std::ofstream(path) << "2023-11-16 18:15:40.0,10,3\n2023-11-16 18:15:42.0,20,5\n";
  const auto requests = MakeRequests({.trace = path, .requests = 5, .rate = 2, .max_context = 100});
  ASSERT_TRUE(requests.ok());
  std::vector<int> prompts;
  std::vector<double> arrivals;
  for (const SimRequest& request : *requests) {
    prompts.push_back(request.prompt);
    arrivals.push_back(static_cast<double>(request.arrival) / 1e9);
  }
  EXPECT_THAT(prompts, testing::ElementsAre(10, 20, 10, 20, 10));
  EXPECT_THAT(arrivals, testing::ElementsAre(0, 1, 2, 3, 4)) << "2 s apart, twice as fast";
}

}  // namespace
}  // namespace fastdecode::sim
