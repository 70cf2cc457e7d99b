// Hands out the ids of a fixed number of KV blocks, which lie in one arena or in several
// of equal size: arena a has the ids [a, a + 1) * num_blocks / num_arenas.
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
  // `num_blocks` is a multiple of `num_arenas`.
  explicit BlockAllocator(uint32_t num_blocks, int num_arenas = 1);

  // From `arena`, or where that is full from the one with the most free blocks; kNoBlock
  // when all are in use.
  uint32_t Allocate(int arena = 0);
  void Free(uint32_t block);

  uint32_t num_blocks() const { return static_cast<uint32_t>(in_use_.size()); }
  uint32_t num_free() const { return num_free_; }  // in all arenas
  int num_arenas() const { return static_cast<int>(arena_free_.size()); }
  // The arena with the most free blocks.
  int Emptiest() const;
  int ArenaOf(uint32_t block) const { return static_cast<int>(block / arena_blocks_); }

 private:
  uint32_t arena_blocks_ = 0;
  std::vector<uint32_t> free_;        // a stack an arena, from arena * arena_blocks_ on
  std::vector<uint32_t> arena_free_;  // by arena: how many of its stack are free
  std::vector<uint8_t> in_use_;       // by block
  uint32_t num_free_ = 0;
};

}  // namespace fastdecode::rworker
