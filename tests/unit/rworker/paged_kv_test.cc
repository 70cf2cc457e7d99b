#include "rworker/paged_kv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "kernels/dispatch.h"
#include "rworker/pool_memory.h"

namespace fastdecode::rworker {
namespace {

const kernels::AttentionKernel& Kernel() { return *kernels::AttentionKernels()[0]; }

KvGeometry Geometry(const AttentionShape& shape, int32_t max_context, int32_t max_sequences) {
  return {.shape = shape,
          .block_tokens = 32,
          .max_context = max_context,
          .max_sequences = max_sequences,
          .codec = kernels::CodecOf(Kernel(), kernels::KvFormat::kF16, kernels::KvFormat::kF16)};
}

// An f16 of a block by the layout's definition: keys [head_dim][32] and values [32][16], the
// head padded to 16 elements, for each KV head.
uint16_t At(const std::byte* block, int token, int head, bool value, int d) {
  constexpr int kKeyTile = 8 * 32;
  constexpr int kValueTile = 32 * 16;
  const int in_tile = value ? kKeyTile + token * 16 + d : d * 32 + token;
  uint16_t bits = 0;
  std::memcpy(&bits, block + (head * (kKeyTile + kValueTile) + in_tile) * 2, 2);
  return bits;
}

struct Cache {
  explicit Cache(int blocks)
      : geometry(Geometry({.num_layers = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8}, 160, 3)),
        storage(static_cast<size_t>(blocks * geometry.block_bytes() / 8)),
        kv(geometry, &Kernel(), reinterpret_cast<std::byte*>(storage.data()), blocks * geometry.block_bytes()) {}
  // The stored number of (slot, layer, token, head, value?, d).
  uint16_t Stored(int32_t slot, int layer, int token, int head, bool value, int d) const {
    return At(kv.layer_blocks(layer) + kv.block_table(slot)[token / 32] * kv.layout().block_bytes(), token % 32, head,
              value, d);
  }
  KvGeometry geometry;
  std::vector<uint64_t> storage;
  PagedKv kv;
};

TEST(PagedKv, RowsComeBackFromWhereTheKernelsLook) {
  Cache cache(8);
  const int32_t other = cache.kv.Add(99);
  ASSERT_TRUE(cache.kv.Reserve(other, 1));
  const int32_t slot = cache.kv.Add(7);
  ASSERT_TRUE(cache.kv.Reserve(slot, 88));
  std::vector<uint16_t> rows(88 * 32);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
  EXPECT_EQ(cache.kv.Write(slot, 1, 0, 30, rows.data(), 32, 0, 2), 0);
  cache.kv.Write(slot, 1, 30, 58, rows.data() + 30 * 32, 32, 0, 1);  // across two block edges, head by head
  cache.kv.Write(slot, 1, 30, 58, rows.data() + 30 * 32, 32, 1, 2);
  for (int t = 0; t < 88; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 8; ++d) {
        ASSERT_EQ(cache.Stored(slot, 1, t, h, false, d), t * 32 + h * 8 + d);
        ASSERT_EQ(cache.Stored(slot, 1, t, h, true, d), t * 32 + 16 + h * 8 + d);
        ASSERT_EQ(cache.Stored(slot, 0, t, h, true, d), 0) << "another layer";
      }
    }
  }
}

TEST(PagedKv, ReservesAllOrNothingAndReturnsEverything) {
  Cache cache(8);
  const int32_t a = cache.kv.Add(1);
  const int32_t b = cache.kv.Add(2);
  ASSERT_TRUE(cache.kv.Reserve(a, 129));
  EXPECT_EQ(cache.kv.BlocksMissing(a, 160), 0);
  EXPECT_EQ(cache.kv.BlocksMissing(b, 97), 4);
  EXPECT_FALSE(cache.kv.Reserve(b, 97));
  EXPECT_EQ(cache.kv.stats().free_blocks, 3);
  EXPECT_TRUE(cache.kv.Reserve(b, 96));
  EXPECT_EQ(cache.kv.stats().free_blocks, 0);
  std::set<uint32_t> blocks(cache.kv.block_table(a), cache.kv.block_table(a) + 5);
  blocks.insert(cache.kv.block_table(b), cache.kv.block_table(b) + 3);
  EXPECT_EQ(blocks.size(), 8u);
  const uint32_t generation = cache.kv.generation(a);
  cache.kv.Remove(a);
  cache.kv.Remove(b);
  EXPECT_NE(cache.kv.generation(a), generation);
  EXPECT_EQ(cache.kv.stats().free_blocks, 8);
  EXPECT_EQ(cache.kv.stats().sequences, 0);
  EXPECT_EQ(cache.kv.Find(1), kNoSlot);
}

TEST(PagedKv, SlotsRunOutAndANewSequenceStartsEmpty) {
  Cache cache(8);
  for (uint64_t s = 0; s < 3; ++s) cache.kv.set_layer_tokens(cache.kv.Add(s), 2, 5);
  EXPECT_EQ(cache.kv.Add(3), kNoSlot);
  cache.kv.Remove(cache.kv.Find(1));
  const int32_t slot = cache.kv.Add(3);
  ASSERT_NE(slot, kNoSlot);
  EXPECT_EQ(cache.kv.layer_tokens(slot, 2), 0);
}

// One part a NUMA node: blocks of all layers lie within the part of their arena.
TEST(PagedKv, ASequencesBlocksLieInOnePartWhileThereAreAny) {
  const KvGeometry geometry = Geometry({.num_layers = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8}, 160, 3);
  const int64_t part = 6 * geometry.block_bytes() + 3208;  // no whole number of blocks
  EXPECT_EQ(PagedKv::BlocksIn(2 * part, geometry, 2), 12);
  std::vector<uint64_t> storage(static_cast<size_t>(2 * part / 8));
  const auto* const base = reinterpret_cast<std::byte*>(storage.data());
  PagedKv kv(geometry, &Kernel(), reinterpret_cast<std::byte*>(storage.data()), 2 * part, 2);
  ASSERT_EQ(kv.num_arenas(), 2);
  EXPECT_EQ(kv.stats().total_blocks, 12);
  const int64_t layer_bytes = kv.layout().block_bytes();  // of a block
  const auto part_of = [&](int32_t slot, int index, int layer) {
    const int64_t first = kv.layer_blocks(layer) + kv.block_table(slot)[index] * layer_bytes - base;
    const int64_t last = first + layer_bytes - 1;
    EXPECT_GE(first, 0);
    EXPECT_LT(last, 2 * part);
    EXPECT_EQ(first / part, last / part);
    return first / part;
  };
  const int32_t a = kv.Add(1);
  const int32_t b = kv.Add(2);  // in one step
  ASSERT_TRUE(kv.Reserve(a, 4 * 32 + 1));
  ASSERT_TRUE(kv.Reserve(b, 5 * 32));
  EXPECT_NE(kv.home(a), kv.home(b));
  for (int layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(part_of(a, i, layer), kv.home(a));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(part_of(b, i, layer), kv.home(b));
  }
  // One block is left in each part: a third sequence spills.
  const int32_t c = kv.Add(3);
  ASSERT_TRUE(kv.Reserve(c, 2 * 32));
  EXPECT_NE(part_of(c, 0, 0), part_of(c, 1, 0));
  EXPECT_EQ(kv.stats().free_blocks, 0);
  std::set<uint32_t> ids(kv.block_table(a), kv.block_table(a) + 5);
  ids.insert(kv.block_table(b), kv.block_table(b) + 5);
  ids.insert(kv.block_table(c), kv.block_table(c) + 2);
  EXPECT_EQ(ids.size(), 12u);
  kv.Remove(b);
  kv.Remove(c);
  kv.Remove(a);
  EXPECT_EQ(kv.stats().free_blocks, 12);
}

// Their ids would need more than 32 bits with a gap between the parts.
TEST(PagedKv, BlocksOfTinyModelsAreNotSplit) {
  KvGeometry tiny = Geometry({.num_layers = 1, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8}, 32, 1);
  const int64_t block = tiny.block_bytes();
  EXPECT_EQ(PagedKv::BlocksIn((int64_t{1} << 32) * block, tiny, 2), kNoBlock);
  EXPECT_EQ(PagedKv::BlocksIn((int64_t{1} << 20) * block, tiny, 2), int64_t{1} << 20);
}

// 2^32 bytes and more in one pool: offsets that need 64 bits. Untouched pages cost nothing.
TEST(PagedKv, OffsetsReachPast32Bits) {
  const KvGeometry large =
      Geometry({.num_layers = 4, .num_heads = 2, .num_kv_heads = 2, .head_dim = 8}, /*max_context=*/64, 2);
  Result<PoolMemory> memory = PoolMemory::Map(int64_t{12} << 30, 0);
  if (!memory.ok()) GTEST_SKIP() << memory.status().ToString();
  PagedKv kv(large, &Kernel(), memory->data(), memory->bytes());
  EXPECT_GT(kv.layer_blocks(3) - kv.layer_blocks(0), int64_t{1} << 32);
  const int32_t slot = kv.Add(1);
  ASSERT_TRUE(kv.Reserve(slot, 33));
  const std::vector<uint16_t> row(2 * 2 * 8, 0x3c00);
  kv.Write(slot, 3, 32, 1, row.data(), 32, 0, 2);
  const std::byte* const block = kv.layer_blocks(3) + kv.block_table(slot)[1] * kv.layout().block_bytes();
  EXPECT_EQ(At(block, 0, 1, true, 7), 0x3c00);
}

#ifndef NDEBUG
TEST(PagedKv, FreedBlocksArePoisoned) {
  Cache cache(8);
  const int32_t slot = cache.kv.Add(1);
  ASSERT_TRUE(cache.kv.Reserve(slot, 1));
  const int64_t block = cache.kv.block_table(slot)[0] * cache.kv.layout().block_bytes();
  cache.kv.Remove(slot);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(cache.kv.layer_blocks(layer)[block], kPoison);
    EXPECT_EQ(cache.kv.layer_blocks(layer)[block + cache.kv.layout().block_bytes() - 1], kPoison);
  }
}
#endif

}  // namespace
}  // namespace fastdecode::rworker
