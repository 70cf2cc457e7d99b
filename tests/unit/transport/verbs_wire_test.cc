#include "common/transport/verbs/verbs_wire.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

bool Same(const Immediate& a, const Immediate& b) {
  return a.kind == b.kind && a.slot == b.slot && a.credit == b.credit && a.more == b.more;
}

TEST(VerbsImmediate, ComesBackAsItWas) {
  const Immediate all[] = {{ImmediateKind::kMessage, 0},
                           {ImmediateKind::kMessage, 4095, 0},
                           {ImmediateKind::kMessage, 7, 4095},
                           {ImmediateKind::kCredit, 4095},
                           {ImmediateKind::kCredit, 3, -1, 1},
                           {ImmediateKind::kCredit, 0, -1, (1U << Immediate::kMore) - 1},
                           {ImmediateKind::kBye}};
  for (const Immediate& immediate : all) {
    const std::optional<Immediate> read = Immediate::Unpack(immediate.Pack());
    ASSERT_TRUE(read.has_value()) << immediate.Pack();
    EXPECT_TRUE(Same(*read, immediate)) << immediate.Pack();
  }
}

// Whatever is believed has one form only.
TEST(VerbsImmediate, EveryOtherPatternIsRefused) {
  int known = 0;
  for (uint32_t high = 0; high < 1U << 20; ++high) {
    const uint32_t bits = high << 12 | 5;
    const std::optional<Immediate> read = Immediate::Unpack(bits);
    if (!read.has_value()) continue;
    ++known;
    EXPECT_EQ(read->Pack(), bits);
  }
  // A message without a credit or with any; any run of credits; a goodbye.
  EXPECT_EQ(known, 1 + 4096 + (1 << Immediate::kMore) + 1);
}

}  // namespace
}  // namespace fastdecode
