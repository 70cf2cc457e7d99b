#include "rworker/paged_kv.h"

#include <algorithm>
#include <cstring>

#include "common/base/logging.h"

namespace fastdecode::rworker {

namespace {

// An arena's first id: its first block begins where its part does or within a block of that.
int64_t FirstId(int64_t bytes, const KvGeometry& geometry, int num_parts, int arena) {
  const int64_t layer_bytes = geometry.layout().block_bytes();
  return (bytes / num_parts * arena + layer_bytes - 1) / layer_bytes;
}

// Blocks of tiny models are so many that with gaps their ids pass 32 bits: they are not split.
int ArenasIn(int64_t bytes, const KvGeometry& geometry, int num_parts) {
  const int64_t last = FirstId(bytes, geometry, num_parts, num_parts - 1) + bytes / geometry.block_bytes();
  return last < kNoBlock ? num_parts : 1;
}

}  // namespace

int64_t PagedKv::BlocksIn(int64_t bytes, const KvGeometry& geometry, int num_parts) {
  const int arenas = ArenasIn(bytes, geometry, num_parts);
  int64_t blocks = kNoBlock;  // of an arena; kNoBlock is no id
  for (int arena = 0; arena < arenas; ++arena) {
    const int64_t begin = FirstId(bytes, geometry, arenas, arena) * geometry.layout().block_bytes();
    blocks = std::min(blocks, (bytes / arenas * (arena + 1) - begin) / geometry.block_bytes());
  }
  return std::max<int64_t>(0, blocks) * arenas;
}

PagedKv::PagedKv(const KvGeometry& geometry, const kernels::AttentionKernel* kernel, std::byte* storage, int64_t bytes,
                 int num_parts)
    : geometry_(geometry),
      layout_(geometry.layout()),
      kernel_(kernel),
      storage_(storage),
      allocator_(static_cast<uint32_t>(BlocksIn(bytes, geometry, num_parts)), ArenasIn(bytes, geometry, num_parts)),
      arena_blocks_(int64_t{allocator_.num_blocks()} / allocator_.num_arenas()),
      layer_bytes_(arena_blocks_ * layout_.block_bytes()),
      table_(geometry.max_sequences),
      slots_(static_cast<size_t>(geometry.max_sequences)),
      free_slots_(static_cast<size_t>(geometry.max_sequences)),
      tables_(new uint32_t[TableIndex(geometry.max_sequences)]),
      layer_tokens_(new int32_t[LayerIndex(geometry.max_sequences, 0)]) {
  for (int32_t i = 0; i < geometry.max_sequences; ++i) {
    free_slots_[static_cast<size_t>(i)] = geometry.max_sequences - 1 - i;
  }
  for (int arena = 0; arena < allocator_.num_arenas(); ++arena) {
    first_ids_.push_back(static_cast<uint32_t>(FirstId(bytes, geometry, allocator_.num_arenas(), arena)));
  }
}

int32_t PagedKv::Add(uint64_t sequence) {
  const int32_t free_count = geometry_.max_sequences - table_.size();
  if (free_count == 0) return kNoSlot;
  const int32_t slot = free_slots_[static_cast<size_t>(free_count - 1)];
  table_.Insert(sequence, slot);
  slots_[static_cast<size_t>(slot)].sequence = sequence;
  std::fill_n(&layer_tokens_[LayerIndex(slot, 0)], geometry_.shape.num_layers, 0);
  return slot;
}

void PagedKv::Remove(int32_t slot) {
  Slot& entry = slots_[static_cast<size_t>(slot)];
  table_.Erase(entry.sequence);
  const uint32_t* const blocks = block_table(slot);
  for (int32_t i = entry.num_blocks; i > 0; --i) {  // backwards: the stack keeps neighbours together
    Poison(blocks[i - 1]);
    allocator_.Free(NumberOf(blocks[i - 1]));
  }
  entry = {.sequence = 0, .generation = entry.generation + 1, .num_blocks = 0, .home = 0};
  free_slots_[static_cast<size_t>(geometry_.max_sequences - table_.size() - 1)] = slot;
}

uint32_t PagedKv::IdOf(uint32_t number) const {
  const int arena = allocator_.ArenaOf(number);
  return first_ids_[static_cast<size_t>(arena)] + number - static_cast<uint32_t>(arena * arena_blocks_);
}

uint32_t PagedKv::NumberOf(uint32_t id) const {
  const auto arena = std::upper_bound(first_ids_.begin(), first_ids_.end(), id) - first_ids_.begin() - 1;
  return id - first_ids_[static_cast<size_t>(arena)] + static_cast<uint32_t>(arena * arena_blocks_);
}

void PagedKv::Poison([[maybe_unused]] uint32_t block) {
#ifndef NDEBUG
  for (int layer = 0; layer < geometry_.shape.num_layers; ++layer) {
    std::fill_n(storage_ + layer * layer_bytes_ + block * layout_.block_bytes(), layout_.block_bytes(), kPoison);
  }
#endif
}

int64_t PagedKv::BlocksMissing(int32_t slot, int64_t tokens) const {
  const int64_t needed = (tokens + geometry_.block_tokens - 1) / geometry_.block_tokens;
  return std::max<int64_t>(0, needed - slots_[static_cast<size_t>(slot)].num_blocks);
}

bool PagedKv::Reserve(int32_t slot, int64_t tokens) {
  CHECK_LE(tokens, geometry_.max_context);
  const int64_t missing = BlocksMissing(slot, tokens);
  if (missing > allocator_.num_free()) return false;
  Slot& entry = slots_[static_cast<size_t>(slot)];
  // Not when it is added: a step may add many before it reserves for the first.
  if (entry.num_blocks == 0) entry.home = allocator_.Emptiest();
  for (int64_t i = 0; i < missing; ++i) {
    tables_[TableIndex(slot) + static_cast<size_t>(entry.num_blocks++)] = IdOf(allocator_.Allocate(entry.home));
  }
  return true;
}

int64_t PagedKv::Write(int32_t slot, int layer, int64_t position, int64_t rows, const uint16_t* kv_rows,
                       int64_t row_stride, int head_begin, int head_end) {
  const uint32_t* const table = block_table(slot);
  std::byte* const blocks = storage_ + layer * layer_bytes_;
  int64_t beyond = 0;
  for (int64_t done = 0; done < rows;) {
    const int64_t in_block = (position + done) % geometry_.block_tokens;
    const int64_t count = std::min<int64_t>(rows - done, geometry_.block_tokens - in_block);
    kernels::AppendParams params;
    params.layout = layout_;
    params.codec = &geometry_.codec;
    params.k = kv_rows + done * row_stride;
    params.v = kv_rows + done * row_stride + geometry_.shape.kv_width();
    params.row_stride = row_stride;
    params.tokens = static_cast<int32_t>(count);
    params.block = blocks + table[(position + done) / geometry_.block_tokens] * layout_.block_bytes();
    params.in_block = static_cast<int32_t>(in_block);
    params.head_begin = head_begin;
    params.head_end = head_end;
    beyond += kernels::Append(*kernel_, params);
    done += count;
  }
  if (beyond != 0) beyond_range_.fetch_add(beyond, std::memory_order_relaxed);
  return beyond;
}

KvStats PagedKv::stats() const {
  return {.total_blocks = allocator_.num_blocks(),
          .free_blocks = allocator_.num_free(),
          .sequences = table_.size(),
          .max_sequences = geometry_.max_sequences,
          .beyond_range = beyond_range_.load(std::memory_order_relaxed)};
}

}  // namespace fastdecode::rworker
