#include "rworker/block_allocator.h"

#include <algorithm>

#include "common/base/logging.h"

namespace fastdecode::rworker {

BlockAllocator::BlockAllocator(uint32_t num_blocks, int num_arenas)
    : arena_blocks_(num_blocks / static_cast<uint32_t>(num_arenas)),
      free_(num_blocks),
      arena_free_(static_cast<size_t>(num_arenas), arena_blocks_),
      in_use_(num_blocks, 0),
      num_free_(num_blocks) {
  CHECK_EQ(num_blocks % static_cast<uint32_t>(num_arenas), 0u);
  for (uint32_t first = 0; first < num_blocks; first += arena_blocks_) {
    // The lowest id is on top.
    for (uint32_t i = 0; i < arena_blocks_; ++i) free_[first + i] = first + arena_blocks_ - 1 - i;
  }
}

int BlockAllocator::Emptiest() const {
  return static_cast<int>(std::max_element(arena_free_.begin(), arena_free_.end()) - arena_free_.begin());
}

uint32_t BlockAllocator::Allocate(int arena) {
  if (num_free_ == 0) return kNoBlock;
  if (arena_free_[static_cast<size_t>(arena)] == 0) arena = Emptiest();
  --num_free_;
  const uint32_t left = --arena_free_[static_cast<size_t>(arena)];
  const uint32_t block = free_[static_cast<uint32_t>(arena) * arena_blocks_ + left];
  in_use_[block] = 1;
  return block;
}

void BlockAllocator::Free(uint32_t block) {
  CHECK_LT(block, num_blocks()) << "not a KV block of this pool";
  CHECK(in_use_[block] != 0) << "KV block " << block << " is given back twice";
  in_use_[block] = 0;
  ++num_free_;
  const auto arena = static_cast<size_t>(ArenaOf(block));
  free_[arena * arena_blocks_ + arena_free_[arena]++] = block;
}

}  // namespace fastdecode::rworker
