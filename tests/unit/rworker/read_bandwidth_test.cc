#include "rworker/read_bandwidth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(ReadBandwidth, PassesGoBeyondTheCaches) {
  EXPECT_GE(BytesBeyondCaches(), int64_t{1} << 30);
  EXPECT_GE(BytesBeyondCaches(), 3 * LastLevelCacheBytes());
}

}  // namespace
}  // namespace fastdecode::rworker
