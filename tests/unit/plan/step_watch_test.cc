// Passes of a running S-worker beside the model's steps.
#include "plan/step_watch.h"

#include <gtest/gtest.h>

namespace fastdecode::plan {
namespace {

// T(B) = 1 ms, R = 1 us, 4 layers of one head.
ModelProfile Times() {
  ModelProfile profile;
  profile.key = {.hidden_size = 8,
                 .intermediate_size = 8,
                 .vocab_size = 8,
                 .num_heads = 1,
                 .num_kv_heads = 1,
                 .head_dim = 8,
                 .dtype = "f32",
                 .device = "cpu",
                 .threads = 1};
  profile.layer = Curve({{1, 1e-3, 0}, {100, 1e-3, 0}});
  RWorkerProfile rworker;
  rworker.attend.seconds_per_token = 1e-6;
  profile.rworkers.push_back(rworker);
  return profile;
}

constexpr Deployment kDeployment{.layers = 4, .mini_batches = 2, .rworkers = 1};

TEST(StepWatchTest, AloneAMiniBatchWaitsForItsRPart) {
  StepWatch watch(Times(), kDeployment);
  watch.PassDone(0, 0, 9'000'000, 10, 1000, false);
  EXPECT_EQ(1, watch.passes());
  EXPECT_NEAR(4 * (1e-3 + 1e-3), watch.predicted().step_s, 1e-9);
  EXPECT_NEAR(9e-3, watch.measured_step_s(), 1e-12);
  EXPECT_NEAR(10 / 9e-3, watch.measured_tokens_per_s(), 1e-6);
  EXPECT_NEAR(4e-3, watch.predicted().kernels_s, 1e-9);
}

TEST(StepWatchTest, TwoThatTakeTurnsAreOneStep) {
  StepWatch watch(Times(), kDeployment);
  watch.PassDone(0, 0, 8'000'000, 10, 200, true);  // told apart, but it took turns with the next
  watch.PassDone(1, 4'000'000, 12'000'000, 10, 200, false);
  EXPECT_EQ(1, watch.passes());
  EXPECT_NEAR(2 * 4 * 1e-3, watch.predicted().step_s, 1e-4);  // the S-part of both
  EXPECT_NEAR(20 / 8e-3, watch.measured_tokens_per_s(), 1e-6);
  watch.Reset();
  EXPECT_EQ(0, watch.passes());
  EXPECT_EQ(0, watch.measured_step_s());
}

// Two sequences on eight R-workers are on two of them: each R-part reads one.
TEST(StepWatchTest, FewSequencesAreOnRWorkersOfTheirOwn) {
  StepWatch watch(Times(), {.layers = 4, .mini_batches = 2, .rworkers = 8});
  watch.PassDone(0, 0, 8'000'000, 1, 1000, true);
  watch.PassDone(1, 4'000'000, 12'000'000, 1, 1000, false);
  EXPECT_NEAR(4 * 1e-3, watch.predicted().kernels_s, 1e-9);
}

TEST(StepWatchTest, PassesWithPrefillTellNothing) {
  StepWatch watch(Times(), kDeployment);
  watch.PassDone(0, 0, 8'000'000, 10, 200, true);
  EXPECT_EQ(0, watch.passes());
}

}  // namespace
}  // namespace fastdecode::plan
