#include "rworker/paged_kv.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/decode_attention.h"
#include "rworker/pool_memory.h"

namespace fastdecode::rworker {
namespace {

constexpr KvGeometry kGeometry{.shape = {.num_layers = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8},
                               .block_tokens = 4,
                               .max_context = 20,
                               .max_sequences = 3};

struct Cache {
  explicit Cache(int blocks)
      : storage(static_cast<size_t>(blocks * kGeometry.block_bytes() / 2)),
        kv(kGeometry, storage.data(), static_cast<int64_t>(storage.size()) * 2) {}
  // The stored number of (slot, layer, token, head, value?, d) by the layout's definition.
  uint16_t At(int32_t slot, int layer, int token, int head, bool value, int d) const {
    const int64_t block = kv.block_table(slot)[token / 4];
    return kv.layer_blocks(
        layer)[block * kGeometry.block_elements() + ((head * 2 + (value ? 1 : 0)) * 4 + token % 4) * 8 + d];
  }
  std::vector<uint16_t> storage;
  PagedKv kv;
};

TEST(PagedKv, RowsComeBackFromWhereTheKernelsLook) {
  Cache cache(8);
  const int32_t other = cache.kv.Add(99);
  ASSERT_TRUE(cache.kv.Reserve(other, 1));
  const int32_t slot = cache.kv.Add(7);
  ASSERT_TRUE(cache.kv.Reserve(slot, 11));
  std::vector<uint16_t> rows(11 * 32);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
  cache.kv.Write(slot, 1, 0, 3, rows.data(), 32, 0, 2);
  cache.kv.Write(slot, 1, 3, 8, rows.data() + 3 * 32, 32, 0, 1);  // across two block edges, head by head
  cache.kv.Write(slot, 1, 3, 8, rows.data() + 3 * 32, 32, 1, 2);
  for (int t = 0; t < 11; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 8; ++d) {
        ASSERT_EQ(cache.At(slot, 1, t, h, false, d), t * 32 + h * 8 + d);
        ASSERT_EQ(cache.At(slot, 1, t, h, true, d), t * 32 + 16 + h * 8 + d);
        ASSERT_EQ(cache.At(slot, 0, t, h, true, d), 0) << "another layer";
      }
    }
  }
}

TEST(PagedKv, ReservesAllOrNothingAndReturnsEverything) {
  Cache cache(8);
  const int32_t a = cache.kv.Add(1);
  const int32_t b = cache.kv.Add(2);
  ASSERT_TRUE(cache.kv.Reserve(a, 17));
  EXPECT_EQ(cache.kv.BlocksMissing(a, 20), 0);
  EXPECT_EQ(cache.kv.BlocksMissing(b, 13), 4);
  EXPECT_FALSE(cache.kv.Reserve(b, 13));
  EXPECT_EQ(cache.kv.stats().free_blocks, 3);
  EXPECT_TRUE(cache.kv.Reserve(b, 12));
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
  const int64_t part = 6 * kGeometry.block_bytes() + 300;  // no whole number of blocks
  const int64_t blocks = PagedKv::BlocksIn(2 * part, kGeometry, 2);
  EXPECT_EQ(blocks, 12);
  std::vector<uint16_t> storage(static_cast<size_t>(part));  // 2 parts of part / 2 elements
  PagedKv kv(kGeometry, storage.data(), 2 * part, 2);
  ASSERT_EQ(kv.num_arenas(), 2);
  EXPECT_EQ(kv.stats().total_blocks, 12);
  const auto part_of = [&](int32_t slot, int index, int layer) {
    const uint16_t* const begin = kv.layer_blocks(layer) + kv.block_table(slot)[index] * kGeometry.block_elements();
    const int64_t first = (begin - storage.data()) * 2;
    const int64_t last = first + kGeometry.block_elements() * 2 - 1;
    EXPECT_GE(first, 0);
    EXPECT_LT(last, 2 * part);
    EXPECT_EQ(first / part, last / part);
    return first / part;
  };
  const int32_t a = kv.Add(1);
  ASSERT_TRUE(kv.Reserve(a, 17));
  const int32_t b = kv.Add(2);
  ASSERT_TRUE(kv.Reserve(b, 20));
  EXPECT_NE(kv.home(a), kv.home(b));
  for (int layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(part_of(a, i, layer), kv.home(a));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(part_of(b, i, layer), kv.home(b));
  }
  // One block is left in each part: a third sequence spills.
  const int32_t c = kv.Add(3);
  ASSERT_TRUE(kv.Reserve(c, 8));
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
  constexpr KvGeometry kTiny{.shape = {.num_layers = 1, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8},
                             .block_tokens = 1,
                             .max_context = 1,
                             .max_sequences = 1};
  EXPECT_EQ(PagedKv::BlocksIn(int64_t{1} << 40, kTiny, 2), kNoBlock);
  EXPECT_EQ(PagedKv::BlocksIn(int64_t{1} << 30, kTiny, 2), (int64_t{1} << 30) / 32);
}

// 2^31 elements and more in one pool: offsets that need 64 bits. Untouched pages cost nothing.
TEST(PagedKv, OffsetsReachPast32Bits) {
  constexpr KvGeometry kLarge{.shape = {.num_layers = 4, .num_heads = 8, .num_kv_heads = 8, .head_dim = 128},
                              .block_tokens = 32,
                              .max_context = 64,
                              .max_sequences = 2};
  Result<PoolMemory> memory = PoolMemory::Map(int64_t{12} << 30, 0);
  if (!memory.ok()) GTEST_SKIP() << memory.status().ToString();
  PagedKv kv(kLarge, reinterpret_cast<uint16_t*>(memory->data()), memory->bytes());
  EXPECT_GT(kv.layer_blocks(3) - kv.layer_blocks(0), int64_t{1} << 32);
  const int32_t slot = kv.Add(1);
  ASSERT_TRUE(kv.Reserve(slot, 33));
  const std::vector<uint16_t> row(2 * 8 * 128, 0x3c00);
  kv.Write(slot, 3, 32, 1, row.data(), 2048, 0, 8);
  const uint16_t* const block = kv.layer_blocks(3) + kv.block_table(slot)[1] * kLarge.block_elements();
  EXPECT_EQ(block[kernels::ValueOffset(7, 32, 128) + 127], 0x3c00);
}

#ifndef NDEBUG
TEST(PagedKv, FreedBlocksArePoisoned) {
  Cache cache(8);
  const int32_t slot = cache.kv.Add(1);
  ASSERT_TRUE(cache.kv.Reserve(slot, 1));
  const uint32_t block = cache.kv.block_table(slot)[0];
  cache.kv.Remove(slot);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(cache.kv.layer_blocks(layer)[block * kGeometry.block_elements()], kPoison);
  }
}
#endif

}  // namespace
}  // namespace fastdecode::rworker
