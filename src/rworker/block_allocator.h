// Hands out the ids of a fixed number of KV blocks.
//
// Allocates memory in the constructor only. Giving back a block that is not in use
// is a broken invariant and terminates. Not thread-safe: the owner's thread only.
#pragma once

#include <cstdint>
#include <vector>

namespace fastdecode::rworker {

inline constexpr uint32_t kNoBlock = UINT32_MAX;

class BlockAllocator {
 public:
  explicit BlockAllocator(uint32_t num_blocks);

  uint32_t Allocate();  // kNoBlock when all are in use
  void Free(uint32_t block);

  uint32_t num_blocks() const { return static_cast<uint32_t>(in_use_.size()); }
  uint32_t num_free() const { return num_free_; }

 private:
  std::vector<uint32_t> free_;   // a stack: the first num_free_ are free
  std::vector<uint8_t> in_use_;  // by block
  uint32_t num_free_ = 0;
};

}  // namespace fastdecode::rworker
