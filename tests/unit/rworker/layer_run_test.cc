#include "rworker/layer_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "fake_nodes.h"
#include "rworker/pool_memory.h"
#include "service_fixture.h"

namespace fastdecode::rworker {
namespace {

kernels::KvCodec F16Codec() {
  const kernels::AttentionKernel* const kernel =
      kernels::ChooseAttentionKernel("auto", kernels::DetectCpuFeatures()).kernel;
  return kernels::CodecOf(*kernel, kernels::KvFormat::kF16, kernels::KvFormat::kF16);
}

// O of one layer, one row of a sequence whose first block comes after `blocks_before` others.
std::vector<uint16_t> OutputBehind(const KvGeometry& geometry, int64_t pool_bytes, int64_t blocks_before,
                                   uint32_t* first_block) {
  const Result<PoolMemory> memory = PoolMemory::Map(pool_bytes, 0);
  EXPECT_TRUE(memory.ok()) << memory.status().ToString();
  const kernels::AttentionKernel* const kernel =
      kernels::ChooseAttentionKernel("auto", kernels::DetectCpuFeatures()).kernel;
  PagedKv kv(geometry, kernel, memory->data(), memory->bytes());
  EXPECT_TRUE(kv.Reserve(kv.Add(1), blocks_before * geometry.block_tokens));
  const int32_t slot = kv.Add(2);
  const int32_t tokens = geometry.block_tokens + 3;
  EXPECT_TRUE(kv.Reserve(slot, tokens));
  *first_block = kv.block_table(slot)[0];
  const AttentionShape& shape = geometry.shape;
  for (int32_t t = 0; t + 1 < tokens; t += 500) {  // the others are zeros
    const std::vector<uint16_t> row = QkvRow(shape, 2, 0, t);
    kv.Write(slot, 0, t, 1, row.data() + shape.q_width(), shape.qkv_width(), 0, shape.num_kv_heads);
  }
  ComputePool pool(1, false);
  LayerRun run(&kv, kernel, &pool, 1);
  std::vector<PlannedRow> rows(1);
  rows[0].slot = slot;
  rows[0].position = tokens - 1;
  StepPlan plan;
  plan.rows = rows;
  run.Plan(plan);
  const std::vector<uint16_t> qkv = QkvRow(shape, 2, 0, tokens - 1);
  std::vector<uint16_t> o(static_cast<size_t>(shape.q_width()));
  run.Run(plan, 0, qkv.data(), o.data());
  return o;
}

// Blocks that begin 2^32 elements and more after the first of their layer. Untouched pages
// cost nothing.
TEST(LayerRun, ReachesBlocksPast32Bits) {
  const KvGeometry geometry{.shape = {.num_layers = 1, .num_heads = 8, .num_kv_heads = 8, .head_dim = 128},
                            .block_tokens = 4096,
                            .max_context = 600 * 4096,
                            .max_sequences = 2,
                            .codec = F16Codec()};
  uint32_t first = 0;
  const std::vector<uint16_t> near = OutputBehind(geometry, 4 * geometry.block_bytes(), 0, &first);
  EXPECT_EQ(first, 0u);
  const std::vector<uint16_t> far = OutputBehind(geometry, 610 * geometry.block_bytes(), 600, &first);
  EXPECT_GT(first * geometry.layout().block_bytes(), int64_t{2} << 32);
  EXPECT_EQ(near, far);
}

// Keys whose scores are nothing, and which write down who attends to which block, holding the
// first piece of each thread until every thread has one.
struct Witness {
  std::mutex mutex;
  std::vector<std::pair<const void*, uint32_t>> seen;  // scratch, which is the thread's own, and block
  std::atomic<int> started{0};
  int threads = 0;
  const std::byte* storage = nullptr;
  int64_t block_bytes = 0;
} witness;
thread_local bool holds_one = false;

void Scores(const kernels::ScoreArgs& args) {
  std::fill_n(args.scores, args.vectors * kernels::kTileTokens, 0.0f);
  {
    std::lock_guard lock(witness.mutex);
    witness.seen.emplace_back(args.scores, static_cast<uint32_t>((args.tile - witness.storage) / witness.block_bytes));
  }
  if (std::exchange(holds_one, true)) return;
  ++witness.started;
  while (witness.started < witness.threads) std::this_thread::yield();
}

TEST(LayerRun, ThreadsTakeTheirOwnNodesRowsFirst) {
  const AttentionShape shape{.num_layers = 1, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  kernels::KvCodec codec =
      kernels::CodecOf(*kernels::AttentionKernels().front(), kernels::KvFormat::kF16, kernels::KvFormat::kF16);
  codec.keys.scores = Scores;
  const KvGeometry geometry{.shape = shape, .block_tokens = 32, .max_context = 32, .max_sequences = 40, .codec = codec};
  PoolOptions options;
  options.bytes = 4 << 20;
  options.topology = FakeNodes(2);
  const PoolMemory memory = *PoolMemory::Map(options);
  ASSERT_EQ(memory.num_parts(), 2);
  const kernels::AttentionKernel& kernel = *kernels::AttentionKernels().front();
  PagedKv kv(geometry, &kernel, memory.data(), memory.bytes(), memory.num_parts());
  witness.storage = memory.data();
  witness.block_bytes = geometry.layout().block_bytes();
  ComputePool pool(2, FakeNodes(2), /*pin=*/false);
  ASSERT_EQ(pool.node(0), 0);
  ASSERT_EQ(pool.node(1), 1);
  LayerRun run(&kv, &kernel, &pool, 40);
  std::vector<PlannedRow> rows;
  for (uint64_t sequence = 0; sequence < 40; ++sequence) {
    const int32_t slot = kv.Add(sequence);
    ASSERT_TRUE(kv.Reserve(slot, 1));
    rows.push_back({.row = static_cast<int32_t>(sequence), .slot = slot});
  }
  StepPlan plan;
  plan.rows = rows;
  run.Plan(plan);
  EXPECT_EQ(plan.num_pieces, 40);
  EXPECT_EQ(plan.arena_pieces_end[0], 20);
  EXPECT_EQ(plan.arena_pieces_end[1], 40);
  const std::vector<uint16_t> qkv(static_cast<size_t>(40 * shape.qkv_width()));
  std::vector<uint16_t> o(static_cast<size_t>(40 * shape.q_width()));
  witness.threads = 2;
  run.Run(plan, 0, qkv.data(), o.data());

  ASSERT_EQ(witness.seen.size(), 40u);
  const uint32_t second_part = static_cast<uint32_t>(memory.part_bytes() / geometry.layout().block_bytes());
  std::map<const void*, std::vector<int>> arenas;  // by thread, in its order
  std::set<uint32_t> blocks;
  for (const auto& [thread, block] : witness.seen) {
    arenas[thread].push_back(block >= second_part ? 1 : 0);
    blocks.insert(block);
  }
  EXPECT_EQ(blocks.size(), 40u) << "each once";
  ASSERT_EQ(arenas.size(), 2u);
  const std::vector<int>& thread0 = arenas.begin()->second;  // scratch lies in the threads' order
  const std::vector<int>& thread1 = arenas.rbegin()->second;
  EXPECT_TRUE(std::is_sorted(thread0.begin(), thread0.end())) << "its own first";
  EXPECT_TRUE(std::is_sorted(thread1.rbegin(), thread1.rend()));
  EXPECT_EQ(thread0.front(), 0);
  EXPECT_EQ(thread1.front(), 1);
}

}  // namespace
}  // namespace fastdecode::rworker
