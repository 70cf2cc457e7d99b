#include "sworker/device/compute_pool.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <stdexcept>

namespace fastdecode {
namespace {

TEST(ComputePool, EveryShardRunsOnceAndAlwaysOnTheSameThread) {
  ComputePool pool(3, {});
  ASSERT_EQ(pool.size(), 3);
  std::array<std::thread::id, 3> first;
  pool.Run([&](int shard) { first[static_cast<size_t>(shard)] = std::this_thread::get_id(); });
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[1], first[2]);
  std::array<int, 3> runs{};
  for (int round = 0; round < 2000; ++round) {
    pool.Run([&](int shard) {
      const auto i = static_cast<size_t>(shard);
      ++runs[i];  // a plain int: a second thread on it, or a Run that does not wait, would lose counts
      EXPECT_EQ(std::this_thread::get_id(), first[i]);
    });
    ASSERT_EQ(runs[0] + runs[1] + runs[2], 3 * (round + 1));
  }
}

TEST(ComputePool, HelpersAreInInferenceModeWithOneLibtorchThread) {
  ComputePool pool(2, {});
  pool.Run([&](int shard) {
    if (shard == 0) return;
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
    EXPECT_EQ(at::get_num_threads(), 1);
  });
}

TEST(ComputePool, RethrowsWhatAHelperThrowsAndGoesOn) {
  ComputePool pool(2, {});
  EXPECT_THROW(pool.Run([](int shard) {
    if (shard == 1) throw std::runtime_error("helper");
  }),
               std::runtime_error);
  EXPECT_THROW(pool.Run([](int shard) {
    if (shard == 0) throw std::logic_error("caller");
  }),
               std::logic_error);
  std::atomic<int> runs{0};
  pool.Run([&](int) { ++runs; });
  EXPECT_EQ(runs, 2);
}

TEST(ComputePool, TwoCallersTakeTurns) {
  ComputePool pool(2, {});
  int inside = 0;  // a plain int, written by shard 0 of either caller
  auto caller = [&] {
    for (int i = 0; i < 500; ++i) {
      pool.Run([&](int shard) {
        if (shard == 0) ++inside;
      });
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(inside, 1000);
}

TEST(ComputePool, PinsHelpersToTheirCpu) {
  const std::vector<int> cpus = AllowedCpus();
  if (cpus.size() < 2) GTEST_SKIP() << "this process may use one CPU only";
  ComputePool pool(2, {cpus[0], cpus[1]});
  pool.Run([&](int shard) {
    if (shard == 0) return;  // the caller's thread is the stream's to pin
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(cpus[1]), &set));
  });
}

}  // namespace
}  // namespace fastdecode
