// The paged KV cache: sequences, their block tables and the blocks' storage.
//
// A block holds block_tokens tokens of one sequence. Block ids are shared by all
// layers: block b of layer l lies at layer l's base + b * layout.block_bytes(), in the
// layout of kernels/kv_format.h. All offsets are 64-bit. Tables, lookup and
// free list have fixed capacity, made in the constructor.
//
// Storage of several parts, one a NUMA node, holds an arena of blocks in each, all layers
// of a block in the same part, and a sequence has its blocks in one arena while there are
// any. Every arena has the same number of blocks, and ids count blocks from the
// beginning of the storage, so that the one address formula above holds for all of them;
// between the ids of two arenas there is a gap.
//
// Freed blocks are poisoned with NaNs in builds without NDEBUG, so that a read of a
// block that is no longer owned shows in the results.
//
// Trusted inside: arguments are checked by AttentionService, broken ones are CHECKs.
// Thread rule: the owner's thread; during a layer's run the pool's threads read tables
// and write disjoint tokens.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/model_shape.h"
#include "kernels/decode_attention.h"
#include "rworker/block_allocator.h"
#include "rworker/sequence_table.h"

namespace fastdecode::rworker {

struct KvStats {
  int64_t total_blocks = 0;
  int64_t free_blocks = 0;
  int64_t sequences = 0;
  int64_t max_sequences = 0;
  int64_t beyond_range = 0;  // elements stored so far that the codec could not hold
};

struct KvGeometry {
  AttentionShape shape;
  int32_t block_tokens = 0;
  int32_t max_context = 0;
  int32_t max_sequences = 0;
  kernels::KvCodec codec;  // what the cache holds

  kernels::KvLayout layout() const {
    return kernels::MakeLayout(codec, shape.num_kv_heads, shape.head_dim, block_tokens);
  }
  int64_t block_bytes() const { return layout().block_bytes() * shape.num_layers; }  // all layers
  int32_t blocks_per_sequence() const { return (max_context + block_tokens - 1) / block_tokens; }
};

// What freed blocks are filled with: NaN in f16, in bf16 and in a scale.
inline constexpr std::byte kPoison{0xff};

class PagedKv {
 public:
  // Blocks that fit into `bytes` in `num_parts` equal parts, with ids of 32 bits.
  static int64_t BlocksIn(int64_t bytes, const KvGeometry& geometry, int num_parts = 1);

  // `storage` [bytes] is borrowed and outlives this.
  PagedKv(const KvGeometry& geometry, const kernels::AttentionKernel* kernel, std::byte* storage, int64_t bytes,
          int num_parts = 1);

  // The slot of a sequence, or kNoSlot.
  int32_t Find(uint64_t sequence) const { return table_.Find(sequence); }
  // A slot for a new sequence with no tokens, or kNoSlot when all are taken.
  int32_t Add(uint64_t sequence);
  // Returns the slot's blocks and forgets the sequence.
  void Remove(int32_t slot);

  // Blocks that the slot still lacks to hold `tokens` tokens.
  int64_t BlocksMissing(int32_t slot, int64_t tokens) const;
  // Allocates them: all, or none and false.
  bool Reserve(int32_t slot, int64_t tokens);

  // Stores K and V rows [K | V] f16, `row_stride` elements apart, as tokens
  // position .. position + rows - 1 of one layer, for KV heads [head_begin, head_end).
  // The blocks are reserved. Counts and returns how many elements were beyond the codec's
  // range, which are stored as its largest value.
  int64_t Write(int32_t slot, int layer, int64_t position, int64_t rows, const uint16_t* kv_rows, int64_t row_stride,
                int head_begin, int head_end);

  // Tokens that the slot's layer holds without a gap.
  int32_t layer_tokens(int32_t slot, int layer) const { return layer_tokens_[LayerIndex(slot, layer)]; }
  void set_layer_tokens(int32_t slot, int layer, int32_t tokens) { layer_tokens_[LayerIndex(slot, layer)] = tokens; }

  // Changes whenever the slot changes hands.
  uint32_t generation(int32_t slot) const { return slots_[static_cast<size_t>(slot)].generation; }
  uint64_t sequence(int32_t slot) const { return slots_[static_cast<size_t>(slot)].sequence; }
  // The arena, and so the part of the storage, that the slot's blocks come from while it has any.
  int home(int32_t slot) const { return slots_[static_cast<size_t>(slot)].home; }
  int num_arenas() const { return allocator_.num_arenas(); }

  const uint32_t* block_table(int32_t slot) const { return &tables_[TableIndex(slot)]; }
  const std::byte* layer_blocks(int layer) const { return storage_ + layer * layer_bytes_; }
  const kernels::KvLayout& layout() const { return layout_; }
  const KvGeometry& geometry() const { return geometry_; }
  KvStats stats() const;

 private:
  struct Slot {
    uint64_t sequence = 0;
    uint32_t generation = 0;
    int32_t num_blocks = 0;
    int32_t home = 0;
  };
  size_t TableIndex(int32_t slot) const {
    return static_cast<size_t>(slot) * static_cast<size_t>(geometry_.blocks_per_sequence());
  }
  size_t LayerIndex(int32_t slot, int layer) const {
    return static_cast<size_t>(slot) * static_cast<size_t>(geometry_.shape.num_layers) + static_cast<size_t>(layer);
  }
  void Poison(uint32_t block);
  // Between the allocator's dense numbers and ids.
  uint32_t IdOf(uint32_t number) const;
  uint32_t NumberOf(uint32_t id) const;

  const KvGeometry geometry_;
  const kernels::KvLayout layout_;
  const kernels::AttentionKernel* const kernel_;
  std::byte* const storage_;  // [num_layers, num_blocks, layout.block_bytes()], in each arena
  BlockAllocator allocator_;
  const int64_t arena_blocks_;
  std::vector<uint32_t> first_ids_;  // by arena
  const int64_t layer_bytes_;        // from one layer to the next
  SequenceTable table_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;          // a stack
  std::unique_ptr<uint32_t[]> tables_;       // [max_sequences, blocks_per_sequence], touched as they fill
  std::unique_ptr<int32_t[]> layer_tokens_;  // [max_sequences, num_layers]
  std::atomic<int64_t> beyond_range_{0};
};

}  // namespace fastdecode::rworker
