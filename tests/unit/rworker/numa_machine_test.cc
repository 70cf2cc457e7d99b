// On a machine that really has several NUMA nodes; tests/numa/run makes a virtual one.
#include <gtest/gtest.h>

#include <algorithm>

#include "rworker/numa_memory.h"
#include "service_fixture.h"

namespace fastdecode::rworker {
namespace {

class NumaMachine : public testing::Test {
 protected:
  void SetUp() override {
    topology_ = ReadCpuTopology(AllowedCpus());
    if (topology_.nodes.size() < 2) GTEST_SKIP() << "this process may use one NUMA node: " << topology_.ToString();
  }
  // Of the pages under the range, how many are looked at and how many lie on another node.
  static std::pair<size_t, size_t> LookedAtAndElsewhere(const std::byte* data, int64_t bytes, int node) {
    const std::vector<int> found = SampleNodes(data, bytes, static_cast<int>(bytes / 4096));
    const auto there = static_cast<size_t>(std::count(found.begin(), found.end(), node));
    return {found.size(), found.size() - there};
  }

  CpuTopology topology_;
};

TEST_F(NumaMachine, EachPartsPagesLieOnItsNode) {
  PoolOptions options;
  options.bytes = 64 << 20;
  options.prefault_threads = 3;
  options.topology = topology_;
  const Result<PoolMemory> memory = PoolMemory::Map(options);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  ASSERT_EQ(memory->num_parts(), static_cast<int>(topology_.nodes.size()));
  for (int i = 0; i < memory->num_parts(); ++i) {
    const auto [pages, elsewhere] = LookedAtAndElsewhere(
        memory->data() + i * memory->part_bytes(), memory->part_bytes(), topology_.nodes[static_cast<size_t>(i)].id);
    EXPECT_EQ(pages, static_cast<size_t>(memory->part_bytes() / 4096));
    EXPECT_EQ(elsewhere, 0u) << "part " << i;
  }
}

TEST_F(NumaMachine, OneNodeAloneHoldsAll) {
  const int id = topology_.nodes.back().id;
  PoolOptions options;
  options.bytes = 16 << 20;
  options.prefault_threads = 2;
  options.topology = *OnlyNode(topology_, id);
  options.strict_nodes = true;
  const PoolMemory memory = *PoolMemory::Map(options);
  EXPECT_EQ(LookedAtAndElsewhere(memory.data(), memory.bytes(), id), std::pair(size_t{4096}, size_t{0}));
  options.bytes = options.topology.nodes.front().available_bytes + (64 << 20);
  const Status refused = PoolMemory::Map(options).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
}

TEST_F(NumaMachine, ThreadsStayOnTheirNodesAndSequencesLieWhereTheyAreComputed) {
  const auto nodes = static_cast<int>(topology_.nodes.size());
  for (const int threads : {topology_.num_cpus(), 2 * topology_.num_cpus()}) {  // pinned, and not
    ComputePool pool(threads, topology_);
    std::vector<std::vector<int>> cpus(static_cast<size_t>(threads));
    pool.Run([](void* c,
                int t) { (*static_cast<std::vector<std::vector<int>>*>(c))[static_cast<size_t>(t)] = AllowedCpus(); },
             &cpus);
    for (int t = 0; t < threads; ++t) {
      const std::vector<int>& of_node = topology_.nodes[static_cast<size_t>(pool.node(t))].cpus;
      EXPECT_TRUE(std::includes(of_node.begin(), of_node.end(), cpus[static_cast<size_t>(t)].begin(),
                                cpus[static_cast<size_t>(t)].end()));
    }
    PoolOptions options;
    options.bytes = 32 << 20;
    options.topology = topology_;
    PoolMemory memory = *PoolMemory::Map(options);
    const AttentionShape shape{2, 4, 2, 64};
    const auto kernel = kernels::ChooseAttentionKernel("auto", kernels::DetectCpuFeatures()).kernel;
    auto service =
        *AttentionService::Create(shape, kSmallLimits, &memory, kernel,
                                  kernels::CodecOf(*kernel, kernels::KvFormat::kF16, kernels::KvFormat::kF16), &pool);
    std::vector<StepRow> rows;
    for (uint64_t sequence = 0; sequence < 4; ++sequence) {
      ASSERT_TRUE(Prefill(*service, sequence, 100).ok());
      rows.push_back({sequence, 100, 0});
    }
    StepOutput output = RunStep(*service, 0, 0, rows);
    for (auto& [sequence, o] : output) {
      const std::vector<double> right = RightOutput(shape, sequence, 100);
      for (size_t i = 0; i < right.size(); ++i) ASSERT_NEAR(kernels::HalfToFloat(o[i]), right[i], 4e-3);
    }
    // Touched by whoever ran: every page that is there lies on its part's node.
    for (int i = 0; i < nodes; ++i) {
      const auto [pages, elsewhere] = LookedAtAndElsewhere(memory.data() + i * memory.part_bytes(), memory.part_bytes(),
                                                           topology_.nodes[static_cast<size_t>(i)].id);
      EXPECT_GT(pages, 0u) << "sequences on every node";
      EXPECT_EQ(elsewhere, 0u);
    }
  }
}

}  // namespace
}  // namespace fastdecode::rworker
