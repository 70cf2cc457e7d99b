// Sequences over faulty transports: each gets the right O to its end, or its R-worker was lost, by
// name; nobody waits for ever, nothing stays behind, and who did not fail loses nothing.
//
//   session_sim_test --seeds=1000            from 0
//   session_sim_test --first=17 --seeds=1    one that failed
#include "tests/sim/session_sim.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "common/base/logging.h"
#include "tests/support/seeds.h"

namespace fastdecode {
namespace {

Seeds g_seeds{0, 60};

struct Totals {
  int sequences = 0, lost = 0, rows = 0, losses = 0;
};

void RunSeed(uint64_t seed, Totals* totals) {
  const SessionPlan plan(seed);
  SessionSim sim(plan);
  const Status status = sim.Run();
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(sim.wrong_rows(), 0) << "of " << sim.wrong_rows() + sim.right_rows();
  int lost = 0;
  for (const SessionSim::Sequence& sequence : sim.sequences()) {
    if (sequence.state == SessionSim::State::kLost) {
      ++lost;
    } else {
      EXPECT_EQ(sequence.steps, sequence.prompt.steps);
    }
  }
  EXPECT_LE(static_cast<int>(sim.losses().size()), sim.faults()) << "an R-worker was lost that did not fail";
  EXPECT_TRUE(lost == 0 || !plan.harmless);
  for (const Status& reason : sim.losses()) {
    EXPECT_NE(reason.message().find("rworker 127.0.0.1:"), std::string::npos) << reason.ToString();
  }
  EXPECT_TRUE(sim.AllIsFree()) << "an R-worker holds what was freed";
  totals->sequences += static_cast<int>(sim.sequences().size());
  totals->lost += lost;
  totals->rows += sim.right_rows();
  totals->losses += static_cast<int>(sim.losses().size());
}

TEST(SessionSim, TheRightRowsOrALostRWorkerByName) {
  Totals totals;
  for (uint64_t seed = g_seeds.first; seed < g_seeds.first + g_seeds.count; ++seed) {
    SCOPED_TRACE(ReplayOf(seed));
    RunSeed(seed, &totals);
    if (HasFailure()) break;
  }
  std::printf("%d sequences, %d of them lost with R-workers that were lost %d times; %d rows were right\n",
              totals.sequences, totals.lost, totals.losses, totals.rows);
  if (g_seeds.count < 50) return;
  EXPECT_GT(totals.lost, 0) << "faults that harm nobody prove nothing";
  EXPECT_GT(totals.sequences, totals.lost);
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  fastdecode::g_seeds = fastdecode::TakeSeeds(argc, argv, fastdecode::g_seeds);
  FLAGS_minloglevel = google::GLOG_ERROR;  // what is lost on purpose is no news
  return RUN_ALL_TESTS();
}
