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

TEST(BlockAllocator, GivesFromTheArenaWhileItHasAnyAndThenFromTheEmptiest) {
  BlockAllocator allocator(9, 3);
  ASSERT_EQ(allocator.num_arenas(), 3);
  EXPECT_EQ(allocator.Emptiest(), 0);
  EXPECT_EQ(allocator.Allocate(1), 3u);
  EXPECT_EQ(allocator.Allocate(1), 4u);
  EXPECT_EQ(allocator.Allocate(2), 6u);
  EXPECT_EQ(allocator.Emptiest(), 0);
  EXPECT_EQ(allocator.Allocate(1), 5u);
  EXPECT_EQ(allocator.ArenaOf(5), 1);
  EXPECT_EQ(allocator.Allocate(1), 0u) << "arena 0 has three";
  EXPECT_EQ(allocator.Allocate(1), 1u) << "two, as arena 2, which comes later";
  EXPECT_EQ(allocator.Emptiest(), 2);
  allocator.Free(4);
  allocator.Free(0);
  EXPECT_EQ(allocator.num_free(), 5u);
  EXPECT_EQ(allocator.Allocate(1), 4u);
  std::set<uint32_t> rest;
  for (int i = 0; i < 4; ++i) rest.insert(allocator.Allocate(0));
  EXPECT_EQ(rest, (std::set<uint32_t>{0, 2, 7, 8}));
  EXPECT_EQ(allocator.Allocate(0), kNoBlock);
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
