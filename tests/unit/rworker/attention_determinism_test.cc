// O of equal Q, K, V is bit-identical whatever else is in the batch, however many threads
// run, wherever the blocks lie and over however many workers the sequences are spread,
// with every kernel and format.
#include <gtest/gtest.h>

#include <algorithm>

#include "service_fixture.h"

namespace fastdecode::rworker {
namespace {

// Around the edges of blocks and ranges (512 tokens), and long among short.
const std::vector<std::pair<uint64_t, uint32_t>> kSequences = {{1, 1},   {2, 15},    {3, 16},  {4, 511},
                                                               {5, 512}, {6, 513},   {7, 700}, {8, 1600},
                                                               {9, 33},  {10, 1024}, {11, 31}, {12, 32}};

std::vector<StepRow> Rows(const std::vector<uint64_t>& sequences) {
  std::vector<StepRow> rows;
  for (const uint64_t sequence : sequences) {
    const auto found =
        std::find_if(kSequences.begin(), kSequences.end(), [&](const auto& entry) { return entry.first == sequence; });
    rows.push_back({sequence, found->second, 0});
  }
  return rows;
}

struct DeterminismCase {
  AttentionShape shape;
  TestKernel kernel;
  std::vector<int> threads;
};

void PrintTo(const DeterminismCase& c, std::ostream* out) {
  *out << c.kernel.kernel->name << ", " << c.shape.num_heads << " heads, " << c.shape.num_kv_heads << " KV heads";
}

class Determinism : public testing::TestWithParam<DeterminismCase> {
 protected:
  TestService Service(int threads, int nodes = 1) const {
    return {GetParam().shape, kSmallLimits, threads, /*blocks=*/512, nodes, GetParam().kernel};
  }
  // Each sequence alone, on a worker of its own with one thread.
  StepOutput Alone() const {
    StepOutput all;
    for (const auto& [sequence, tokens] : kSequences) {
      TestService service = Service(1);
      EXPECT_TRUE(Prefill(*service.service, sequence, tokens).ok());
      all.merge(RunStep(*service.service, 0, 0, Rows({sequence})));
    }
    return all;
  }
};

TEST_P(Determinism, ThreadsNodesBatchesAndBlockOrdersDoNotShow) {
  const StepOutput alone = Alone();
  std::mt19937_64 random(3);
  std::vector<std::pair<int, int>> pools = {{2, 2}, {3, 2}, {2, 3}};  // threads, pretended NUMA nodes
  for (const int threads : GetParam().threads) pools.emplace_back(threads, 1);
  for (const auto& [threads, nodes] : pools) {
    TestService service = Service(threads, nodes);
    std::vector<uint64_t> order;
    for (const auto& [sequence, tokens] : kSequences) order.push_back(sequence);
    std::shuffle(order.begin(), order.end(), random);
    // Blocks in disorder: others come and go in between.
    for (const uint64_t sequence : order) {
      ASSERT_TRUE(Prefill(*service.service, sequence + 100, 40).ok());
      ASSERT_TRUE(Prefill(*service.service, sequence, Rows({sequence})[0].position).ok());
      if (sequence % 4 != 0) {
        ASSERT_TRUE(service->Free(sequence + 100).ok());
      }
    }
    for (uint64_t s = 101; s <= 112; ++s) ASSERT_TRUE(service->Free(s).ok());
    EXPECT_EQ(RunStep(*service.service, 0, 0, Rows(order)), alone)
        << threads << " threads, one batch, nodes: " << nodes;
    // A replay in parts, in the other mini-batch.
    const auto half = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
    StepOutput parts = RunStep(*service.service, 1, 0, Rows({order.begin(), half}));
    parts.merge(RunStep(*service.service, 1, 1, Rows({half, order.end()})));
    EXPECT_EQ(parts, alone) << threads << " threads, two batches, nodes: " << nodes;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Determinism,
                         testing::Values(DeterminismCase{{1, 4, 4, 64}, {}, {1, 2, 3, 4, 5, 6, 7, 8}},
                                         DeterminismCase{{1, 14, 2, 32}, {}, {1, 2, 3, 4, 5, 6, 7, 8}},
                                         DeterminismCase{{2, 9, 1, 40}, {}, {1, 2, 3, 4, 5, 6, 7, 8}}));

// Every kernel that this CPU can run, every format of keys and of values.
std::vector<DeterminismCase> KernelsAndFormats() {
  using enum kernels::KvFormat;
  std::vector<DeterminismCase> cases;
  for (const kernels::AttentionKernel* kernel : kernels::AttentionKernels()) {
    if ((kernel->features & ~kernels::DetectCpuFeatures()) != 0) continue;
    for (const auto& [keys, values] :
         {std::pair{kF16, kF16}, {kBf16, kBf16}, {kInt8, kInt8}, {kInt4, kInt4}, {kInt8, kInt4}}) {
      cases.push_back({{1, 12, 2, 32}, {kernel, keys, values}, {2, 5, 8}});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Determinism, testing::ValuesIn(KernelsAndFormats()), [](const auto& info) {
  const TestKernel& kernel = info.param.kernel;
  return std::string(kernel.kernel->name) + "_" + std::string(kernels::KvFormatName(kernel.keys)) + "_" +
         std::string(kernels::KvFormatName(kernel.values));
});

}  // namespace
}  // namespace fastdecode::rworker
