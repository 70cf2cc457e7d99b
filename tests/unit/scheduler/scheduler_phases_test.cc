// A sequence from submit to its end, whatever ends it.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SchedulerPhasesTest, OneSequenceFromSubmitToIdle) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 100);
  EXPECT_TRUE(scheduler.Idle());
  ASSERT_TRUE(scheduler.Submit(7, 15, 4).ok());
  EXPECT_EQ(scheduler.stats().waiting, 1);
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(7));
  EXPECT_EQ(scheduler.stats().prefilling, 1);
  EXPECT_THAT(scheduler.stats().reserved_blocks, ElementsAre(2));  // 15 + 4 tokens in blocks of 10
  EXPECT_THAT(scheduler.PlanPass(0).rows, IsEmpty());
  scheduler.PrefillDone(7);
  EXPECT_EQ(scheduler.stats().ready, 1);
  for (int64_t tokens = 15; tokens <= 18; ++tokens) {  // the first appends the prompt's last token
    EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(7));
    EXPECT_THAT(scheduler.stats().workload, ElementsAre(tokens));
  }
  EXPECT_EQ(scheduler.stats().decoding, 1);
  EXPECT_THAT(scheduler.PlanPass(0).rows, IsEmpty());
  scheduler.Finished(7);
  EXPECT_EQ(scheduler.stats().decoding, 0);
  EXPECT_FALSE(scheduler.Idle()) << "its blocks are not free yet";
  scheduler.BlocksFreed(7);
  EXPECT_TRUE(scheduler.Idle());
  EXPECT_THAT(scheduler.stats().reserved_blocks, ElementsAre(0));
}

TEST(SchedulerPhasesTest, OneTokenTakesOnePass) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 2);
  ASSERT_TRUE(scheduler.Submit(1, 20, 1).ok() == false);  // 21 tokens: 3 blocks
  ASSERT_TRUE(scheduler.Submit(2, 19, 1).ok());
  ASSERT_TRUE(scheduler.Submit(3, 19, 1).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(2));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(2));
  EXPECT_THAT(scheduler.PlanPass(0).rows, IsEmpty());
  scheduler.Finished(2);
  EXPECT_THAT(Prefill(scheduler), IsEmpty()) << "the blocks are not free yet";
  scheduler.BlocksFreed(2);
  EXPECT_THAT(Prefill(scheduler), ElementsAre(3));
  End(scheduler, 3);
  EXPECT_TRUE(scheduler.Idle());
}

TEST(SchedulerPhasesTest, RowsAreOrderedByRWorker) {
  SchedulerOptions options = Options();
  options.num_rworkers = 3;
  Scheduler scheduler(options);
  for (int r = 0; r < 3; ++r) scheduler.RWorkerJoined(r, 1000);
  for (SequenceId id = 1; id <= 9; ++id) ASSERT_TRUE(scheduler.Submit(id, 10, 5 + static_cast<int>(id)).ok());
  EXPECT_EQ(Prefill(scheduler).size(), 9u);
  const PassPlan plan = scheduler.PlanPass(0);
  ASSERT_EQ(plan.rows.size(), 9u);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(plan.rows[i].rworker, static_cast<int>(i / 3));
}

TEST(SchedulerPhasesTest, CancelInEveryPhase) {
  SchedulerOptions options = Options();
  options.workload_limit = 1000;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10);
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.Submit(id, 10, 10).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(scheduler.PlanPass(0).rows.size(), 5u);
  scheduler.Finished(1);  // decoding
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(scheduler.stats().workload, ElementsAre(4 * 11));
  scheduler.BlocksFreed(1);
  ASSERT_TRUE(scheduler.Submit(6, 10, 10).ok());
  ASSERT_TRUE(scheduler.Submit(7, 10, 10).ok());
  scheduler.Finished(7);  // waiting
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(6));
  scheduler.Finished(6);  // prefilling
  scheduler.PrefillDone(6);
  EXPECT_THAT(scheduler.stats().reserved_blocks, ElementsAre(10));
  scheduler.BlocksFreed(6);
  ASSERT_TRUE(scheduler.Submit(8, 10, 10).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(8));
  scheduler.Finished(8);  // ready
  scheduler.Finished(8);
  scheduler.BlocksFreed(8);
  scheduler.BlocksFreed(8);
  scheduler.Finished(999);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(2, 3, 4, 5));
  for (SequenceId id = 2; id <= 5; ++id) End(scheduler, id);
  EXPECT_TRUE(scheduler.Idle());
}

TEST(SchedulerPhasesTest, ALostRWorkerNamesItsSequencesAndTheOthersGoOn) {
  SchedulerOptions options = Options();
  options.num_rworkers = 2;
  options.workload_limit = 1000;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 8);
  scheduler.RWorkerJoined(1, 8);
  std::map<int, std::vector<SequenceId>> placed;
  for (SequenceId id = 1; id <= 8; ++id) ASSERT_TRUE(scheduler.Submit(id, 10, 10).ok());
  for (const PrefillItem& item : scheduler.PlanPrefill()) placed[item.rworker].push_back(item.sequence);
  ASSERT_EQ(placed[0].size(), 4u);
  ASSERT_EQ(placed[1].size(), 4u);
  for (int i = 0; i < 3; ++i) scheduler.PrefillDone(placed[1][static_cast<size_t>(i)]);
  EXPECT_EQ(scheduler.PlanPass(0).rows.size(), 3u);
  scheduler.Finished(placed[1][0]);  // its blocks are lost with the R-worker
  EXPECT_THAT(scheduler.RWorkerLost(1), ElementsAre(placed[1][1], placed[1][2], placed[1][3]));
  EXPECT_THAT(scheduler.stats().total_blocks, ElementsAre(8, 0));
  EXPECT_THAT(scheduler.stats().reserved_blocks, ElementsAre(8, 0));
  scheduler.PrefillDone(placed[1][3]);  // late news of the dead
  scheduler.BlocksFreed(placed[1][0]);
  for (SequenceId id : placed[0]) scheduler.PrefillDone(id);
  EXPECT_EQ(Ids(scheduler.PlanPass(0)), placed[0]);

  EXPECT_THAT(scheduler.RWorkerJoined(1, 2), IsEmpty());
  ASSERT_TRUE(scheduler.Submit(9, 10, 10).ok());
  ASSERT_TRUE(scheduler.Submit(10, 10, 10).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(9)) << "two blocks are all that it has now";
}

}  // namespace
}  // namespace fastdecode
