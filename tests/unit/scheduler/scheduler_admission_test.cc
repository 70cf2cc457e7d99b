// Who is refused, who is prefilled next, and where.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SchedulerAdmissionTest, RefusesWhatNeverFitsWithTheNumbers) {
  SchedulerOptions options = Options();
  options.num_rworkers = 2;
  Scheduler scheduler(options);
  EXPECT_EQ(scheduler.Submit(1, 10, 10).code(), StatusCode::kUnavailable);
  scheduler.RWorkerJoined(0, 3);
  scheduler.RWorkerJoined(1, 5);
  const Status blocks = scheduler.Submit(2, 40, 11);
  EXPECT_EQ(blocks.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(blocks.message(), AllOf(HasSubstr("40 prompt tokens"), HasSubstr("11 output tokens"),
                                      HasSubstr("6 KV blocks of 10 tokens"), HasSubstr("has 5")));
  EXPECT_TRUE(scheduler.Submit(3, 40, 10).ok());
  scheduler.RWorkerLost(1);
  EXPECT_TRUE(scheduler.Submit(4, 40, 10).ok()) << "the large R-worker may return";
  EXPECT_THAT(scheduler.RWorkerJoined(1, 4), ElementsAre(3, 4)) << "it returned smaller";
  EXPECT_TRUE(scheduler.Idle());

  options.workload_limit = 60;
  Scheduler limited(options);
  limited.RWorkerJoined(0, 100);
  const Status workload = limited.Submit(1, 50, 12);  // its last step reads 49 + 12
  EXPECT_EQ(workload.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(workload.message(), AllOf(HasSubstr("61 cached tokens"), HasSubstr("limit is 60")));
  EXPECT_TRUE(limited.Submit(2, 50, 11).ok());
}

TEST(SchedulerAdmissionTest, PrefillsShareAStepUpToTheBudget) {
  SchedulerOptions options = Options();
  options.prefill_tokens_per_step = 50;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  const int prompts[] = {21, 31, 2, 81, 11};  // one more than is prefilled
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.Submit(id, prompts[id - 1], static_cast<int>(id)).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  EXPECT_THAT(Prefill(scheduler), ElementsAre(3));
  EXPECT_THAT(Prefill(scheduler), ElementsAre(4)) << "a longer one runs alone";
  EXPECT_THAT(Prefill(scheduler), ElementsAre(5));
}

// It makes no more room for those that have ended than for those in flight.
TEST(SchedulerAdmissionTest, AnRWorkerThatIsSlowToFreeGetsNoMore) {
  SchedulerOptions options = Options();
  options.max_batch = 2;
  options.load_control = false;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.Submit(id, 1, 1).ok());
  for (const SequenceId id : {SequenceId{1}, SequenceId{3}}) {
    EXPECT_THAT(Prefill(scheduler), ElementsAre(id, id + 1));
    scheduler.Finished(id);
    scheduler.Finished(id + 1);
  }
  EXPECT_THAT(Prefill(scheduler), IsEmpty()) << "it holds four";
  scheduler.BlocksFreed(2);
  EXPECT_THAT(Prefill(scheduler), ElementsAre(5));
}

TEST(SchedulerAdmissionTest, LowestPeakInUnitsOfSpeed) {
  SchedulerOptions options = Options();
  options.num_rworkers = 2;
  options.workload_limit = 10'000;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  scheduler.RWorkerJoined(1, 1000, 3.0);
  std::map<int, int> placed;
  for (SequenceId id = 1; id <= 16; ++id) ASSERT_TRUE(scheduler.Submit(id, 40, 20).ok());
  for (const PrefillItem& item : scheduler.PlanPrefill()) ++placed[item.rworker];
  EXPECT_EQ(placed[0], 4);
  EXPECT_EQ(placed[1], 12);
}

// The head needs 6 of 10 blocks while 5 are held for 10 more passes. Short ones may pass it,
// long ones may not, and neither may one that would keep the head's blocks.
TEST(SchedulerAdmissionTest, OthersPassTheHeadOnlyIfItLosesNothing) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 10);
  ASSERT_TRUE(scheduler.Submit(1, 40, 10).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
  ASSERT_TRUE(scheduler.Submit(2, 30, 30).ok());  // the head
  ASSERT_TRUE(scheduler.Submit(3, 5, 45).ok());   // 5 blocks, beyond 1's end
  ASSERT_TRUE(scheduler.Submit(4, 5, 5).ok());    // gone before 1's end
  ASSERT_TRUE(scheduler.Submit(5, 5, 35).ok());   // 4 blocks: exactly what the head leaves
  ASSERT_TRUE(scheduler.Submit(6, 5, 45).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(4, 5));
  End(scheduler, 4);
  End(scheduler, 1);
  EXPECT_THAT(Prefill(scheduler), ElementsAre(2));
}

TEST(SchedulerAdmissionTest, AHeadWhoseRWorkerIsAwayHoldsNobodyBack) {
  SchedulerOptions options = Options();
  options.num_rworkers = 2;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 2);
  scheduler.RWorkerJoined(1, 8);
  EXPECT_THAT(scheduler.RWorkerLost(1), IsEmpty());
  ASSERT_TRUE(scheduler.Submit(1, 30, 30).ok());
  ASSERT_TRUE(scheduler.Submit(2, 5, 5).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(2));
  EXPECT_THAT(scheduler.RWorkerJoined(1, 8), IsEmpty());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1));
}

// Each of the short requests that keep coming would end before the head could start anyway,
// by the forecast; but prefills are slow here, so the forecast always slips.
TEST(SchedulerAdmissionTest, TheHeadIsNotPassedForEver) {
  SchedulerOptions options = Options();
  options.max_batch = 4;
  options.load_control = false;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10);
  std::map<SequenceId, int> left;
  SequenceId last = 0;
  const auto submit = [&](int tokens, int all_tokens) {
    ASSERT_TRUE(scheduler.Submit(++last, all_tokens - tokens, tokens).ok());
    left[last] = tokens;
  };
  submit(40, 50);   // half of the blocks
  submit(20, 100);  // the head: all of them
  bool started = false;
  std::vector<std::pair<int, SequenceId>> prefills;  // done at a round
  int round = 0;
  for (; round < 1000 && !started; ++round) {
    submit(round == 0 ? 20 : 11, 50);
    for (const PrefillItem& item : scheduler.PlanPrefill()) {
      started = started || item.sequence == 2;
      prefills.emplace_back(item.sequence == 1 ? round : round + 30, item.sequence);
    }
    std::erase_if(prefills, [&](const auto& prefill) {
      if (prefill.first <= round) scheduler.PrefillDone(prefill.second);
      return prefill.first <= round;
    });
    for (const PassRow& row : scheduler.PlanPass(0).rows) {
      if (--left[row.sequence] == 0) End(scheduler, row.sequence);
    }
  }
  EXPECT_TRUE(started);
  EXPECT_GT(round, 41) << "nobody passed it";
}

TEST(SchedulerAdmissionTest, WithoutLoadControlEverythingStartsAtOnce) {
  SchedulerOptions options = Options();
  options.load_control = false;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 120);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 1, 81).ok());
  EXPECT_EQ(Prefill(scheduler).size(), 13u) << "of nine blocks each";
}

}  // namespace
}  // namespace fastdecode
