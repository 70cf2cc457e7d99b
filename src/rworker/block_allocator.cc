#include "rworker/block_allocator.h"

#include "common/base/logging.h"

namespace fastdecode::rworker {

BlockAllocator::BlockAllocator(uint32_t num_blocks) : free_(num_blocks), in_use_(num_blocks, 0), num_free_(num_blocks) {
  // The lowest id is on top.
  for (uint32_t i = 0; i < num_blocks; ++i) free_[i] = num_blocks - 1 - i;
}

uint32_t BlockAllocator::Allocate() {
  if (num_free_ == 0) return kNoBlock;
  const uint32_t block = free_[--num_free_];
  in_use_[block] = 1;
  return block;
}

void BlockAllocator::Free(uint32_t block) {
  CHECK_LT(block, num_blocks()) << "not a KV block of this pool";
  CHECK(in_use_[block] != 0) << "KV block " << block << " is given back twice";
  in_use_[block] = 0;
  free_[num_free_++] = block;
}

}  // namespace fastdecode::rworker
