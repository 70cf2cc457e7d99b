// How fast sequences of equal length start.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Equal lengths: started over their whole life instead of together; a few are not held back.
TEST(SchedulerPacingTest, PacesEqualLengths) {
  SchedulerOptions options = Options();
  for (const int waiting : {6, 64}) {
    Scheduler scheduler(options);
    scheduler.RWorkerJoined(0, 10'000);
    for (SequenceId id = 1; id <= static_cast<SequenceId>(waiting); ++id) {
      ASSERT_TRUE(scheduler.Submit(id, 2, 80).ok());
    }
    int started = 0;
    for (int round = 0; round < 40; ++round) {
      started += static_cast<int>(Prefill(scheduler).size());
      if (waiting == 6) {
        EXPECT_EQ(started, 6) << "six of sixteen slots peak below the full batch's mean";
      } else {
        EXPECT_NEAR(started, 1 + round * 16.0 / 80, 1) << "16 sequences in 80 steps, round " << round;
      }
      scheduler.PlanPass(0);
    }
  }
}

// Slots are shared out by speed: so are the starts.
TEST(SchedulerPacingTest, AFasterRWorkerStartsMore) {
  SchedulerOptions options = Options();
  options.num_rworkers = 2;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10'000, 3);
  scheduler.RWorkerJoined(1, 10'000, 1);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 2, 80).ok());
  std::map<int, int> started;
  for (int round = 0; round < 60; ++round) {
    for (const PrefillItem& item : scheduler.PlanPrefill()) {
      ++started[item.rworker];
      scheduler.PrefillDone(item.sequence);
    }
    scheduler.PlanPass(0);
  }
  EXPECT_NEAR(started[0], 1 + 60 * 12.0 / 80, 1) << "12 of 16 slots";
  EXPECT_NEAR(started[1], 1 + 60 * 4.0 / 80, 1) << "4 of 16 slots";
}

// A long quiet time does not save up for a wave.
TEST(SchedulerPacingTest, StartTokensDoNotPileUp) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 10'000);
  ASSERT_TRUE(scheduler.Submit(1, 2, 80).ok());
  for (int round = 0; round < 70; ++round) {
    Prefill(scheduler);
    EXPECT_EQ(scheduler.PlanPass(0).rows.size(), 1u);
  }
  for (SequenceId id = 2; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 2, 80).ok());
  EXPECT_EQ(Prefill(scheduler).size(), 1u);
}

// An early end gives back the share of its token that it has not used.
TEST(SchedulerPacingTest, EarlyEndsLetOthersStart) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 10'000);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 2, 80).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  scheduler.PlanPass(0);
  EXPECT_THAT(Prefill(scheduler), IsEmpty());
  End(scheduler, 1);
  EXPECT_THAT(Prefill(scheduler), ElementsAre(3)) << "it had read 2 of its 3320 tokens";
}

// interval_steps: the same rate in micro-batches.
TEST(SchedulerPacingTest, IntervalGroupsTheStarts) {
  SchedulerOptions options = Options();
  options.interval_steps = 20;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10'000);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 2, 80).ok());
  std::map<int, size_t> starts;
  for (int round = 1; round <= 60; ++round) {
    const size_t started = Prefill(scheduler).size();
    if (started > 0) starts[round] = started;
    scheduler.PlanPass(0);
  }
  // The first waits for nothing, the second has its pair's first token, then 16 * 20 / 80 each.
  EXPECT_THAT(starts, ElementsAre(std::pair(1, 2u), std::pair(21, 4u), std::pair(41, 4u)));
}

}  // namespace
}  // namespace fastdecode
