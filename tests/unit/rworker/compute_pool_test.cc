#include "rworker/compute_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

struct Visits {
  std::vector<int> by_thread;  // written without locks: each thread its own
  std::vector<std::vector<int>> cpus;
};

TEST(ComputePool, EveryThreadRunsOnceARun) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const bool pin : {false, true}) {
      ComputePool pool(threads, pin);
      ASSERT_EQ(pool.num_threads(), threads);
      Visits visits{std::vector<int>(static_cast<size_t>(threads)), {}};
      for (int run = 1; run <= 500; ++run) {
        pool.Run([](void* v, int t) { ++static_cast<Visits*>(v)->by_thread[static_cast<size_t>(t)]; }, &visits);
        ASSERT_EQ(std::accumulate(visits.by_thread.begin(), visits.by_thread.end(), 0), run * threads);
      }
      EXPECT_EQ(*std::min_element(visits.by_thread.begin(), visits.by_thread.end()), 500);
    }
  }
}

TEST(ComputePool, PinsToTheMaskAndGivesTheCallersMaskBack) {
  const std::vector<int> before = AllowedCpus();
  const int threads = AllowedThreads();
  if (threads < 2) GTEST_SKIP() << "this process may use one CPU";
  {
    ComputePool pool(threads);
    ASSERT_TRUE(pool.pinned());
    Visits visits{{}, std::vector<std::vector<int>>(static_cast<size_t>(threads))};
    pool.Run([](void* v, int t) { static_cast<Visits*>(v)->cpus[static_cast<size_t>(t)] = AllowedCpus(); }, &visits);
    for (size_t t = 0; t < visits.cpus.size(); ++t) EXPECT_EQ(visits.cpus[t], std::vector<int>{before[t]});
  }
  EXPECT_EQ(AllowedCpus(), before);
}

TEST(ComputePool, OneThreadIsNotPinned) {
  ComputePool pool(1);
  EXPECT_FALSE(pool.pinned());
}

TEST(ComputePool, MoreThreadsThanCpusAreNotPinned) {
  ComputePool pool(AllowedThreads() + 1);
  EXPECT_FALSE(pool.pinned());
}

TEST(ComputePool, ZeroTakesWhatIsAllowed) { EXPECT_EQ(ComputePool(0, false).num_threads(), AllowedThreads()); }

}  // namespace
}  // namespace fastdecode::rworker
