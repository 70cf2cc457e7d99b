// O of equal Q, K, V is bit-identical whatever else is in the batch, however many threads
// run, wherever the blocks lie and over however many workers the sequences are spread.
#include <gtest/gtest.h>

#include <algorithm>

#include "service_fixture.h"

namespace fastdecode::rworker {
namespace {

// Around the edges of blocks and ranges (512 tokens), and long among short.
const std::vector<std::pair<uint64_t, uint32_t>> kSequences = {{1, 1},   {2, 15},  {3, 16},   {4, 511}, {5, 512},
                                                               {6, 513}, {7, 700}, {8, 1600}, {9, 33},  {10, 1024}};

std::vector<StepRow> Rows(const std::vector<uint64_t>& sequences) {
  std::vector<StepRow> rows;
  for (const uint64_t sequence : sequences) {
    const auto found =
        std::find_if(kSequences.begin(), kSequences.end(), [&](const auto& entry) { return entry.first == sequence; });
    rows.push_back({sequence, found->second, 0});
  }
  return rows;
}

class Determinism : public testing::TestWithParam<AttentionShape> {
 protected:
  // Each sequence alone, on a worker of its own with one thread.
  StepOutput Alone() const {
    StepOutput all;
    for (const auto& [sequence, tokens] : kSequences) {
      TestService service(GetParam(), kSmallLimits);
      EXPECT_TRUE(Prefill(*service.service, sequence, tokens).ok());
      all.merge(RunStep(*service.service, 0, 0, Rows({sequence})));
    }
    return all;
  }
};

TEST_P(Determinism, ThreadsNodesBatchesAndBlockOrdersDoNotShow) {
  const StepOutput alone = Alone();
  std::mt19937_64 random(3);
  for (const auto& [threads, nodes] : {std::pair(1, 1), {2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}, {3, 2}, {2, 3}}) {
    TestService service(GetParam(), kSmallLimits, threads, 512, nodes);
    std::vector<uint64_t> order;
    for (const auto& [sequence, tokens] : kSequences) order.push_back(sequence);
    std::shuffle(order.begin(), order.end(), random);
    // Blocks in disorder: others come and go in between.
    for (const uint64_t sequence : order) {
      ASSERT_TRUE(Prefill(*service.service, sequence + 100, 40).ok());
      ASSERT_TRUE(Prefill(*service.service, sequence, Rows({sequence})[0].position).ok());
      if (sequence % 2 == 0) {
        ASSERT_TRUE(service->Free(sequence + 100).ok());
      }
    }
    for (uint64_t s = 101; s <= 110; ++s) ASSERT_TRUE(service->Free(s).ok());
    EXPECT_EQ(RunStep(*service.service, 0, 0, Rows(order)), alone)
        << threads << " threads, one batch, nodes: " << nodes;
    // A replay in parts, in the other mini-batch.
    const size_t half = order.size() / 2;
    StepOutput parts =
        RunStep(*service.service, 1, 0, Rows({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(half)}));
    parts.merge(
        RunStep(*service.service, 1, 1, Rows({order.begin() + static_cast<std::ptrdiff_t>(half), order.end()})));
    EXPECT_EQ(parts, alone) << threads << " threads, two batches, nodes: " << nodes;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Determinism,
                         testing::Values(AttentionShape{1, 4, 4, 64}, AttentionShape{1, 14, 2, 32},
                                         AttentionShape{2, 9, 1, 40}));

}  // namespace
}  // namespace fastdecode::rworker
