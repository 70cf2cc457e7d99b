#include "rworker/pool_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "fake_nodes.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

TEST(PoolMemory, IsAllThereAlignedAndWritable) {
  for (const int64_t bytes : {int64_t{4096}, int64_t{100000}, int64_t{5} << 20}) {
    for (const int threads : {0, 1, 3}) {
      Result<PoolMemory> memory = PoolMemory::Map(bytes, threads);
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      EXPECT_LE(memory->bytes(), bytes);
      EXPECT_GT(memory->bytes(), bytes - (2 << 20));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 4096, 0u);
      std::memset(memory->data(), 1, static_cast<size_t>(memory->bytes()));
      PoolMemory moved = std::move(*memory);
      EXPECT_EQ(moved.data()[moved.bytes() - 1], std::byte{1});
    }
  }
}

TEST(PoolMemory, MoreThanThereIsIsRefusedWithTheNumbers) {
  const int64_t available = FindAvailableMemory().bytes;
  ASSERT_GT(available, 0);
  const Result<PoolMemory> memory = PoolMemory::Map(available * 2, 1);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(memory.status().message(), testing::HasSubstr(std::to_string(available * 2 >> 20) + " MiB"));
  EXPECT_THAT(memory.status().message(), testing::HasSubstr("are available here: "));
  EXPECT_THAT(memory.status().message(), testing::HasSubstr("lower kv_memory"));
  EXPECT_FALSE(PoolMemory::Map(0, 1).ok());
  EXPECT_FALSE(PoolMemory::Map(-5, 1).ok());
}

TEST(PoolMemory, TellsWhatPagesItReallyGot) {
  const PoolMemory untouched = *PoolMemory::Map(8 << 20, 0);
  EXPECT_LT(untouched.huge_share(), 0);
  EXPECT_EQ(untouched.DescribePages(), PageKindName(untouched.page_kind()));
  const PoolMemory memory = *PoolMemory::Map(64 << 20, 2);
  ASSERT_GE(memory.huge_share(), 0);
  ASSERT_LE(memory.huge_share(), 1);
  if (memory.page_kind() == PageKind::kTransparentHuge) {
    const int percent = static_cast<int>(100 * memory.huge_share());
    EXPECT_EQ(memory.DescribePages(), "transparent huge pages, " + std::to_string(percent) + " % of the pool");
  }
  EXPECT_EQ(memory.PageHint().empty(), memory.huge_share() >= 0.9);
}

TEST(PoolMemory, HasAnEqualPartForEachNode) {
  for (const int64_t bytes : {int64_t{100001}, int64_t{13} << 20}) {
    for (const int nodes : {1, 2, 3}) {
      PoolOptions options;
      options.bytes = bytes;
      options.prefault_threads = 2;
      options.topology = FakeNodes(nodes);
      const Result<PoolMemory> memory = PoolMemory::Map(options);
      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      EXPECT_EQ(memory->num_parts(), nodes);
      EXPECT_EQ(memory->part_bytes() * nodes, memory->bytes());
      EXPECT_LE(memory->bytes(), bytes);
      EXPECT_EQ(nodes == 1 ? 0 : memory->part_bytes() % 4096, 0);
    }
  }
  PoolOptions tiny;
  tiny.bytes = 5000;
  tiny.topology = FakeNodes(2);
  EXPECT_EQ(PoolMemory::Map(tiny).status().code(), StatusCode::kInvalidArgument);
}

TEST(PoolMemory, ANodeWithTooLittleIsNamed) {
  PoolOptions options;
  options.bytes = 16 << 20;
  options.prefault_threads = 1;
  options.strict_nodes = true;
  options.topology.nodes = {{kAnyNode, AllowedCpus(), int64_t{5} << 20}};
  const Status refused = PoolMemory::Map(options).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), testing::HasSubstr("16 MiB is to lie on NUMA node -1, which has only 5 MiB left"));
  options.strict_nodes = false;
  EXPECT_TRUE(PoolMemory::Map(options).ok()) << "slower, and warned of, but it works";
}

TEST(PoolMemory, AStopWhileItIsTouchedGivesUp) {
  PoolOptions options;
  options.bytes = std::min(int64_t{2} << 30, FindAvailableMemory().bytes / 2);
  options.prefault_threads = 1;
  options.stop = [] { return true; };
  const Result<PoolMemory> memory = PoolMemory::Map(options);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace fastdecode::rworker
