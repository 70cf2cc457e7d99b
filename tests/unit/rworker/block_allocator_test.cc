#include "rworker/block_allocator.h"

#include <gtest/gtest.h>

#include <set>

namespace fastdecode::rworker {
namespace {

TEST(BlockAllocator, HandsOutEveryBlockOnceAndThenNone) {
  BlockAllocator allocator(5);
  std::set<uint32_t> blocks;
  for (int i = 0; i < 5; ++i) blocks.insert(allocator.Allocate());
  EXPECT_EQ(blocks, (std::set<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(allocator.Allocate(), kNoBlock);
  EXPECT_EQ(allocator.num_free(), 0u);
  allocator.Free(3);
  EXPECT_EQ(allocator.num_free(), 1u);
  EXPECT_EQ(allocator.Allocate(), 3u);
}

TEST(BlockAllocatorDeathTest, GivingBackWhatIsNotInUseTerminates) {
  BlockAllocator allocator(2);
  const uint32_t block = allocator.Allocate();
  allocator.Free(block);
  EXPECT_DEATH(allocator.Free(block), "given back twice");
  EXPECT_DEATH(allocator.Free(2), "not a KV block");
}

}  // namespace
}  // namespace fastdecode::rworker
