#include "sworker/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One mini-batch, one R-worker, room for everything, unless a test says otherwise.
SchedulerOptions Options() {
  SchedulerOptions options;
  options.mini_batches = 1;
  options.max_batch = 16;
  options.max_context = 100;
  options.block_tokens = 10;
  return options;
}

std::vector<SequenceId> Ids(const std::vector<PrefillItem>& items) {
  std::vector<SequenceId> ids;
  for (const PrefillItem& item : items) ids.push_back(item.sequence);
  return ids;
}

std::vector<SequenceId> Ids(const PassPlan& plan) {
  std::vector<SequenceId> ids;
  for (const PassRow& row : plan.rows) ids.push_back(row.sequence);
  return ids;
}

// Prefills at once whatever may start now.
std::vector<SequenceId> Prefill(Scheduler& scheduler) {
  const auto ids = Ids(scheduler.PlanPrefill());
  for (SequenceId id : ids) scheduler.PrefillDone(id);
  return ids;
}

void End(Scheduler& scheduler, SequenceId id) {
  scheduler.Finished(id);
  scheduler.BlocksFreed(id);
}

TEST(SchedulerTest, OneSequenceFromSubmitToIdle) {
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
  for (int64_t tokens = 16; tokens <= 18; ++tokens) {  // prefill made token 1, so three passes
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

TEST(SchedulerTest, OneTokenNeverDecodes) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 2);
  ASSERT_TRUE(scheduler.Submit(1, 20, 1).ok() == false);  // 21 tokens: 3 blocks
  ASSERT_TRUE(scheduler.Submit(2, 19, 1).ok());
  ASSERT_TRUE(scheduler.Submit(3, 19, 1).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(2));
  EXPECT_THAT(scheduler.PlanPass(0).rows, IsEmpty());
  scheduler.Finished(2);
  EXPECT_THAT(Prefill(scheduler), IsEmpty()) << "the blocks are not free yet";
  scheduler.BlocksFreed(2);
  EXPECT_THAT(Prefill(scheduler), ElementsAre(3));
  End(scheduler, 3);
  EXPECT_TRUE(scheduler.Idle());
}

TEST(SchedulerTest, RefusesWhatNeverFitsWithTheNumbers) {
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
  const Status workload = limited.Submit(1, 50, 12);  // its last step reads 50 + 11
  EXPECT_EQ(workload.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(workload.message(), AllOf(HasSubstr("61 cached tokens"), HasSubstr("limit is 60")));
  EXPECT_TRUE(limited.Submit(2, 50, 11).ok());
}

// Automatic: B(S+F)/2 for each R-worker, F the interval at which a pair gets one sequence at a time.
TEST(SchedulerTest, WorkloadLimit) {
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

TEST(SchedulerTest, PrefillsShareAStepUpToTheBudget) {
  SchedulerOptions options = Options();
  options.prefill_tokens_per_step = 50;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  const int prompts[] = {20, 30, 1, 80, 10};
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.Submit(id, prompts[id - 1], static_cast<int>(id)).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  EXPECT_THAT(Prefill(scheduler), ElementsAre(3));
  EXPECT_THAT(Prefill(scheduler), ElementsAre(4)) << "a longer one runs alone";
  EXPECT_THAT(Prefill(scheduler), ElementsAre(5));
}

TEST(SchedulerTest, LowestPeakInUnitsOfSpeed) {
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

TEST(SchedulerTest, RowsAreOrderedByRWorker) {
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

// The head needs 6 of 10 blocks while 5 are held for 10 more passes. Short ones may pass it,
// long ones may not, and neither may one that would keep the head's blocks.
TEST(SchedulerTest, OthersPassTheHeadOnlyIfItLosesNothing) {
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

TEST(SchedulerTest, AHeadWhoseRWorkerIsAwayHoldsNobodyBack) {
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

// W stays within the limit when a prefill takes so long that its load has shifted.
TEST(SchedulerTest, AReadySequenceWaitsUntilItFits) {
  SchedulerOptions options = Options();
  options.workload_limit = 50;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 10, 21).ok());  // reads 11 .. 30
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));  // 11; 19 passes to come, the last reads 30
  ASSERT_TRUE(scheduler.Submit(2, 18, 4).ok());             // reads 19 .. 21: fits now, not near 1's end
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(2));
  for (int pass = 0; pass < 17; ++pass) EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));  // reads 28
  scheduler.PrefillDone(2);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1, 2));  // 29 + 19 = 48, then 30 + 20 = 50
  EXPECT_THAT(scheduler.stats().workload, ElementsAre(48));

  Scheduler late(options);
  late.RWorkerJoined(0, 1000);
  ASSERT_TRUE(late.Submit(1, 10, 21).ok());
  EXPECT_THAT(Prefill(late), ElementsAre(1));
  EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1));
  ASSERT_TRUE(late.Submit(2, 18, 4).ok());
  EXPECT_THAT(Ids(late.PlanPrefill()), ElementsAre(2));
  for (int pass = 0; pass < 16; ++pass) EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1));  // reads 27
  late.PrefillDone(2);
  EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1)) << "28 + 19, 29 + 20, then 30 + 21 > 50";
  EXPECT_THAT(Ids(late.PlanPass(0)), ElementsAre(1, 2));
}

// Two mini-batches: one sequence longer than half the limit waits for both of them.
TEST(SchedulerTest, TheLimitHoldsOverAllMiniBatches) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.workload_limit = 80;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 30, 5).ok());  // reads up to 34, in one of the mini-batches
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
  ASSERT_TRUE(scheduler.Submit(2, 50, 10).ok());  // reads up to 59 > 80 - 34
  ASSERT_TRUE(scheduler.Submit(3, 5, 3).ok());    // would fit, but would keep 2 waiting
  EXPECT_THAT(Prefill(scheduler), IsEmpty());
  EXPECT_THAT(scheduler.PlanPass(1).rows, IsEmpty());
  End(scheduler, 1);
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), IsEmpty());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(2, 3));
}

// A pass in flight counts until its mini-batch's next turn, whoever ends with it.
TEST(SchedulerTest, ThePassInFlightCounts) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.workload_limit = 100;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 10, 36).ok());  // mini-batch 0: reads 11 .. 45
  ASSERT_TRUE(scheduler.Submit(2, 44, 5).ok());   // mini-batch 1: reads 45 .. 48
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  ASSERT_TRUE(scheduler.Submit(3, 10, 4).ok());  // mini-batch 0: reads 11 .. 13
  EXPECT_THAT(Ids(scheduler.PlanPrefill()), ElementsAre(3));
  for (int reads = 11; reads <= 28; ++reads) {
    EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
    EXPECT_EQ(scheduler.PlanPass(1).rows.size(), reads < 15 ? 1u : 0u);
    if (reads == 14) End(scheduler, 2);
  }
  ASSERT_TRUE(scheduler.Submit(4, 50, 6).ok());  // mini-batch 1: reads 51 .. 55
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
TEST(SchedulerTest, AWaitingSequenceMayChangeItsMiniBatch) {
  SchedulerOptions options = Options();
  options.mini_batches = 2;
  options.workload_limit = 100;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 1000);
  ASSERT_TRUE(scheduler.Submit(1, 10, 21).ok());  // mini-batch 0: reads 11 .. 30
  ASSERT_TRUE(scheduler.Submit(2, 10, 31).ok());  // mini-batch 1: reads 11 .. 40
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(1));
  EXPECT_THAT(Ids(scheduler.PlanPass(1)), ElementsAre(2));
  ASSERT_TRUE(scheduler.Submit(3, 18, 4).ok());  // reads 19 .. 21; mini-batch 0 has the lower peak
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

TEST(SchedulerTest, CancelInEveryPhase) {
  SchedulerOptions options = Options();
  options.workload_limit = 1000;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10);
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.Submit(id, 10, 10).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(scheduler.PlanPass(0).rows.size(), 5u);
  scheduler.Finished(1);  // decoding
  EXPECT_THAT(Ids(scheduler.PlanPass(0)), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(scheduler.stats().workload, ElementsAre(4 * 12));
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

TEST(SchedulerTest, ALostRWorkerNamesItsSequencesAndTheOthersGoOn) {
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

// Equal lengths: started over their whole life instead of together; a few are not held back.
TEST(SchedulerTest, PacesEqualLengths) {
  SchedulerOptions options = Options();
  for (const int waiting : {6, 64}) {
    Scheduler scheduler(options);
    scheduler.RWorkerJoined(0, 10'000);
    for (SequenceId id = 1; id <= static_cast<SequenceId>(waiting); ++id) {
      ASSERT_TRUE(scheduler.Submit(id, 1, 81).ok());
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

// A long quiet time does not save up for a wave.
TEST(SchedulerTest, StartTokensDoNotPileUp) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 10'000);
  ASSERT_TRUE(scheduler.Submit(1, 1, 81).ok());
  for (int round = 0; round < 70; ++round) {
    Prefill(scheduler);
    EXPECT_EQ(scheduler.PlanPass(0).rows.size(), 1u);
  }
  for (SequenceId id = 2; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 1, 81).ok());
  EXPECT_EQ(Prefill(scheduler).size(), 1u);
}

// An early end gives back the share of its token that it has not used.
TEST(SchedulerTest, EarlyEndsLetOthersStart) {
  Scheduler scheduler(Options());
  scheduler.RWorkerJoined(0, 10'000);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 1, 81).ok());
  EXPECT_THAT(Prefill(scheduler), ElementsAre(1, 2));
  scheduler.PlanPass(0);
  EXPECT_THAT(Prefill(scheduler), IsEmpty());
  End(scheduler, 1);
  EXPECT_THAT(Prefill(scheduler), ElementsAre(3)) << "it had read 2 of its 3320 tokens";
}

// Each of the short requests that keep coming would end before the head could start anyway,
// by the forecast; but prefills are slow here, so the forecast always slips.
TEST(SchedulerTest, TheHeadIsNotPassedForEver) {
  SchedulerOptions options = Options();
  options.max_batch = 4;
  options.load_control = false;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10);
  std::map<SequenceId, int> left;
  SequenceId last = 0;
  const auto submit = [&](int tokens, int all_tokens) {
    ASSERT_TRUE(scheduler.Submit(++last, all_tokens - tokens, tokens).ok());
    left[last] = tokens - 1;
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

// interval_steps: the same rate in micro-batches.
TEST(SchedulerTest, IntervalGroupsTheStarts) {
  SchedulerOptions options = Options();
  options.interval_steps = 20;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 10'000);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 1, 81).ok());
  std::map<int, size_t> starts;
  for (int round = 1; round <= 60; ++round) {
    const size_t started = Prefill(scheduler).size();
    if (started > 0) starts[round] = started;
    scheduler.PlanPass(0);
  }
  // The first waits for nothing, the second has its pair's first token, then 16 * 20 / 80 each.
  EXPECT_THAT(starts, ElementsAre(std::pair(1, 2u), std::pair(21, 4u), std::pair(41, 4u)));
}

TEST(SchedulerTest, WithoutLoadControlEverythingStartsAtOnce) {
  SchedulerOptions options = Options();
  options.load_control = false;
  Scheduler scheduler(options);
  scheduler.RWorkerJoined(0, 120);
  for (SequenceId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Submit(id, 1, 81).ok());
  EXPECT_EQ(Prefill(scheduler).size(), 13u) << "of nine blocks each";
}

}  // namespace
}  // namespace fastdecode
