#include "rworker/read_bandwidth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_nodes.h"
#include "rworker/pool_memory.h"

namespace fastdecode::rworker {
namespace {

TEST(ReadBandwidth, MeasuresWithAMethodThatThisCpuHas) {
  ComputePool pool(2, /*pin=*/false);
  PoolMemory memory = *PoolMemory::Map(4 << 20, 1);
  ReadBandwidth probe(&pool, memory.data(), memory.bytes());
  const ReadMethod best = probe.FindBest();
  ASSERT_NE(best.kernel, nullptr);
  EXPECT_EQ(best.kernel->features & ~kernels::DetectCpuFeatures(), 0u);
  EXPECT_GT(probe.Measure(best), 0);
  EXPECT_THAT(best.ToString(), testing::HasSubstr("stream"));
}

TEST(ReadBandwidth, ReadsEveryPartByItsNodesThreads) {
  ComputePool pool(3, FakeNodes(2), /*pin=*/false);
  PoolOptions options;
  options.bytes = 8 << 20;
  options.topology = FakeNodes(2);
  PoolMemory memory = *PoolMemory::Map(options);
  ReadBandwidth probe(&pool, memory.data(), memory.bytes(), memory.num_parts());
  EXPECT_GT(probe.Measure(probe.FindBest()), 0);
}

TEST(ReadBandwidth, PassesGoBeyondTheCaches) {
  EXPECT_GE(BytesBeyondCaches(), int64_t{1} << 30);
  EXPECT_GE(BytesBeyondCaches(), 3 * LastLevelCacheBytes());
}

}  // namespace
}  // namespace fastdecode::rworker
