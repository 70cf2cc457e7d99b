#include "rworker/workload_meter.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace fastdecode::rworker {
namespace {

TEST(WorkloadMeter, CountsTheLatestStepOfEachMiniBatch) {
  WorkloadMeter meter(2, 4);
  const StepRow a[] = {{1, 9, 0}, {2, 0, 0}};
  const StepRow b[] = {{3, 99, 0}};
  meter.BeginStep(0, a);
  EXPECT_EQ(meter.now(), 11U);
  meter.BeginStep(1, b);
  EXPECT_EQ(meter.now(), 111U);
  const StepRow next[] = {{1, 10, 0}};
  meter.BeginStep(0, next);
  EXPECT_EQ(meter.now(), 111U);
  meter.Free(3);
  EXPECT_EQ(meter.now(), 11U);
  meter.Free(3);
  meter.Free(77);
  EXPECT_EQ(meter.now(), 11U);
  meter.BeginStep(0, {});
  EXPECT_EQ(meter.now(), 0U);
  EXPECT_EQ(meter.peak(), 111U);
}

TEST(WorkloadMeter, AgreesWithASumOverWhatIsDecoded) {
  std::mt19937_64 random(3);
  constexpr int kMiniBatches = 3, kRows = 8;
  WorkloadMeter meter(kMiniBatches, kRows);
  std::map<uint64_t, uint64_t> decoded[kMiniBatches];  // sequence -> tokens
  uint64_t peak = 0;
  for (int i = 0; i < 20'000; ++i) {
    size_t mini_batch = random() % kMiniBatches;
    if (random() % 3 == 0) {
      uint64_t sequence = random() % 60;
      for (auto& rows : decoded) rows.erase(sequence);
      meter.Free(sequence);
    } else {
      std::vector<StepRow> rows;
      decoded[mini_batch].clear();
      for (uint64_t n = random() % (kRows + 1); n > 0; --n) {
        // Mini-batches share no sequence.
        StepRow row{kMiniBatches * (random() % 20) + mini_batch, static_cast<uint32_t>(random() % 1000), 0};
        if (decoded[mini_batch].emplace(row.sequence, row.position + 1).second) rows.push_back(row);
      }
      meter.BeginStep(static_cast<int>(mini_batch), rows);
    }
    uint64_t sum = 0;
    for (auto& rows : decoded) {
      for (auto& [sequence, tokens] : rows) sum += tokens;
    }
    peak = std::max(peak, sum);
    ASSERT_EQ(meter.now(), sum);
  }
  EXPECT_EQ(meter.peak(), peak);
}

}  // namespace
}  // namespace fastdecode::rworker
