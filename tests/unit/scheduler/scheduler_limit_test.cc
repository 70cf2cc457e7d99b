// The limit of W: what it is, and that no step passes it.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Automatic: B(S+F)/2 for each R-worker, F the interval at which a pair gets one sequence at a time.
TEST(SchedulerLimitTest, WorkloadLimit) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.max_batch = 64;
  options.num_rworkers = 3;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  scheduler.RWorkerJoined(1, 70);  // 700 cached tokens
  scheduler.RWorkerJoined(2, 1000, 0.5);
  // S = 100, B = 64 / 3, F = 100 * 2 / B: (B S + 2 S) / 2
  EXPECT_THAT(scheduler.stats().workload_limits, ElementsAre(1166, 700, 583));
  EXPECT_EQ(scheduler.stats().workload_limit, 1166);

  options.workload_limit = 500;  // given for an R-worker of speed 1
  Scheduler given(options);
  given.RWorkerJoined(0, 1000);
  given.RWorkerJoined(1, 1000, 1.5);
  EXPECT_THAT(given.stats().workload_limits, ElementsAre(500, 750, 0));

  options.workload_limit = 0;
  options.max_batch = 1;  // never below the largest request
  Scheduler small(options);
  small.RWorkerJoined(0, 1000, 0.1);
  EXPECT_EQ(small.stats().workload_limit, 100);
}

// W stays within the limit when a prefill takes so long that its load has shifted.
TEST(SchedulerLimitTest, AReadySequenceWaitsUntilItFits) {
  SchedulerOptions options = Options();
  options.workload_limit = 50;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 11, 20).ok());  // reads 11 .. 30
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));  // 11; 19 passes to come, the last reads 30
  ASSERT_TRUE(scheduler.Submit(2, 19, 3).ok());             // reads 19 .. 21: fits now, not near 1's end
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(2));
  for (int pass = 0; pass < 17; ++pass) EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));  // reads 28
  scheduler.PrefillDone(2);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1, 2));  // 29 + 19 = 48, then 30 + 20 = 50
  EXPECT_THAT(scheduler.stats().workload, ElementsAre(48));

  Scheduler late(options);
  late.RWorkerJoined(0, 1000);
  ASSERT_TRUE(late.Submit(1, 11, 20).ok());
  EXPECT_THAT(Prefill(late), ElementsAre(1));
  EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1));
  ASSERT_TRUE(late.Submit(2, 19, 3).ok());
  EXPECT_THAT(Ids(late.PlanPrefill()), ElementsAre(2));
  for (int pass = 0; pass < 16; ++pass) EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1));  // reads 27
  late.PrefillDone(2);
  EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1)) << "28 + 19, 29 + 20, then 30 + 21 > 50";
  EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1, 2));
}

// Two mini-batches: one sequence longer than half the limit waits for both of them.
TEST(SchedulerLimitTest, TheLimitHoldsOverAllMiniBatches) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.workload_limit = 80;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 31, 4).ok());  // reads up to 34, in one of the mini-batches
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
  ASSERT_TRUE(scheduler.Submit(2, 51, 9).ok());  // reads up to 59 > 80 - 34
  ASSERT_TRUE(scheduler.Submit(3, 6, 2).ok());   // would fit, but would keep 2 waiting
  EXPECT_THAT(Prefill(scheduler), IsEmpty());
  EXPECT_THAT(scheduler.PlanPass(1).rows, IsEmpty());
  End(scheduler, 1);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), IsEmpty());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(2, 3));
}

// A pass in flight counts until its mini-batch's next turn, whoever ends with it.
TEST(SchedulerLimitTest, ThePassInFlightCounts) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.workload_limit = 100;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 11, 35).ok());  // mini-batch 0: reads 11 .. 45
  ASSERT_TRUE(scheduler.Submit(2, 45, 4).ok());   // mini-batch 1: reads 45 .. 48
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  ASSERT_TRUE(scheduler.Submit(3, 11, 3).ok());  // mini-batch 0: reads 11 .. 13
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(3));
  for (int reads = 11; reads <= 28; ++reads) {
    EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
    EXPECT_EQ(scheduler.PlanPass(1).rows.size(), reads < 15 ? 1u : 0u);
    if (reads == 14) End(scheduler, 2);
  }
  ASSERT_TRUE(scheduler.Submit(4, 51, 5).ok());  // mini-batch 1: reads 51 .. 55
  EXPECT_THAT(Prefill(scheduler), ElementsAre(4));
  for (int reads = 29; reads <= 33; ++reads) {
    EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
    EXPECT_THAT(Ids(scheduler.PlanPass(1)), ElementsAre(4));
  }
  scheduler.PrefillDone(3);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1)) << "36 + 13, with 55 in flight";
  EXPECT_THAT(Ids(scheduler.PlanPass(1)), ElementsAre(3)) << "that pass is over, and its mini-batch empty";
}

// What its own mini-batch cannot take any more goes to one that can.
TEST(SchedulerLimitTest, AWaitingSequenceMayChangeItsMiniBatch) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.workload_limit = 100;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 11, 20).ok());  // mini-batch 0: reads 11 .. 30
  ASSERT_TRUE(scheduler.Submit(2, 11, 30).ok());  // mini-batch 1: reads 11 .. 40
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(1)), ElementsAre(2));
  ASSERT_TRUE(scheduler.Submit(3, 19, 3).ok());  // reads 19 .. 21; mini-batch 0 has the lower peak
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(3));
  for (int pass = 0; pass < 16; ++pass) {
    scheduler.PlanPass(0);
    scheduler.PlanPass(1);
  }
  End(scheduler, 2);
  scheduler.PrefillDone(3);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1)) << "28 + 19, 29 + 20, then 30 + 21 > 50";
  EXPECT_THAT(Ids(scheduler.PlanPass(1)), ElementsAre(3));
}

}  // namespace
}  // namespace fastdecode
