#include "rworker/sequence_table.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

namespace fastdecode::rworker {
namespace {

// Against the standard library's map, at the fill where chains are longest.
TEST(SequenceTable, AgreesWithAMapThroughRandomInsertsAndErases) {
  constexpr int32_t kCapacity = 64;
  SequenceTable table(kCapacity);
  std::unordered_map<uint64_t, int32_t> right;
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t sequence = random() % 100 + (random() % 2 == 0 ? 0 : uint64_t{1} << 63);
    const auto found = right.find(sequence);
    ASSERT_EQ(table.Find(sequence), found == right.end() ? kNoSlot : found->second);
    if (found != right.end()) {
      table.Erase(sequence);
      right.erase(found);
    } else if (table.size() < kCapacity) {
      table.Insert(sequence, i);
      right[sequence] = i;
    }
    ASSERT_EQ(table.size(), static_cast<int32_t>(right.size()));
  }
}

TEST(SequenceTableDeathTest, BrokenUseTerminates) {
  SequenceTable table(1);
  EXPECT_DEATH(table.Erase(4), "not in the table");
  table.Insert(4, 0);
  EXPECT_DEATH(table.Insert(5, 1), "");
}

}  // namespace
}  // namespace fastdecode::rworker
