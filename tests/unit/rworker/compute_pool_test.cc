#include "rworker/compute_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <system_error>

#include "fake_nodes.h"
#include "rworker/host_limits.h"
#include "tests/support/allow_threads.h"

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

TEST(ComputePool, SpreadsItsThreadsOverTheNodes) {
  ComputePool pool(5, FakeNodes(2), /*pin=*/false);
  EXPECT_FALSE(pool.pinned());
  for (int t = 0; t < 5; ++t) EXPECT_EQ(pool.node(t), pool.node(t % 2)) << t;
  EXPECT_NE(pool.node(0), pool.node(1));
  EXPECT_EQ(ComputePool(3, false).node(2), 0);
}

// More threads than CPUs are not pinned, but kept on their nodes.
TEST(ComputePool, ThreadsStayOnTheirNode) {
  const std::vector<int> before = AllowedCpus();
  const std::vector<int> last = {before.back()};
  const CpuTopology topology{{{kAnyNode, {before.front()}, -1}, {kAnyNode, last, -1}}};
  {
    ComputePool pool(5, topology);
    Visits visits{{}, std::vector<std::vector<int>>(5)};
    pool.Run([](void* v, int t) { static_cast<Visits*>(v)->cpus[static_cast<size_t>(t)] = AllowedCpus(); }, &visits);
    for (int t = 0; t < 5; ++t) {
      EXPECT_EQ(visits.cpus[static_cast<size_t>(t)], topology.nodes[static_cast<size_t>(pool.node(t))].cpus);
    }
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

[[noreturn]] void MakeWithOneThread() {
  AllowThreads(1);
  try {
    ComputePool pool(3, false);
  } catch (const std::system_error&) {
    _exit(0);
  }
  _exit(4);
}

TEST(ComputePool, AHostWithFewerThreadsIsAnErrorOfItsMaker) {
  EXPECT_EXIT(MakeWithOneThread(), testing::ExitedWithCode(0), "");
}

TEST(ComputePool, ZeroTakesWhatIsAllowed) { EXPECT_EQ(ComputePool(0, false).num_threads(), AllowedThreads()); }

}  // namespace
}  // namespace fastdecode::rworker
