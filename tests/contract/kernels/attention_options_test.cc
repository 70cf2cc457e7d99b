// What a query row sees and how its scores become weights, for every kernel and every pair
// of formats, against double precision: several rows, windows, sinks, caps, and all of
// these together with ranges.
#include <gtest/gtest.h>

#include <cmath>

#include "attention_case.h"
#include "format_pairs.h"
#include "stored.h"

namespace fastdecode::kernels {
namespace {

class AttentionOptionsContract : public PairTest {
 protected:
  void Check(CaseSpec spec, int range_tokens = 0) {
    AttentionCase test(Of(spec), ++seed_);
    test.Cache();
    test.Check(range_tokens);
  }
  uint64_t seed_ = 100;
};

TEST_P(AttentionOptionsContract, QueryRowsSeeNoLaterToken) {
  for (int rows = 1; rows <= 20; ++rows) {
    ASSERT_NO_FATAL_FAILURE(Check({.group = 1 + rows % 3, .head_dim = 40, .length = 50 + rows, .rows = rows}, 32));
  }
  for (const int first : {0, 1, 15, 16, 27, 28, 31, 32, 33, 60, 90}) {
    ASSERT_NO_FATAL_FAILURE(
        Check({.num_kv_heads = 2, .group = 2, .length = 95, .rows = 5, .first_position = first}, 64));
  }
  ASSERT_NO_FATAL_FAILURE(
      Check({.num_kv_heads = 2, .group = 1, .head_dim = 16, .length = kMaxQueryRows, .rows = kMaxQueryRows}, 128));
}

TEST_P(AttentionOptionsContract, Windows) {
  for (const int window : {1, 31, 32, 33, 1000}) {
    for (const int length : {1, 33, 64, 100, 200}) {
      for (const int sink_tokens : {0, 4, 40}) {
        CaseSpec spec{.group = 3, .head_dim = 32, .length = length, .window = window, .sink_tokens = sink_tokens};
        ASSERT_NO_FATAL_FAILURE(Check(spec, 64));
        if (length < 7) continue;
        spec.rows = 7;
        ASSERT_NO_FATAL_FAILURE(Check(spec, 32));
      }
    }
  }
}

TEST_P(AttentionOptionsContract, SinkTokensCountForNothingWithoutAWindow) {
  ASSERT_NO_FATAL_FAILURE(Check({.group = 2, .length = 40, .rows = 3, .sink_tokens = 33}));
}

TEST_P(AttentionOptionsContract, SoftCaps) {
  for (const float cap : {30.0f, 50.0f, 1.0f}) {
    for (const float deviation : {1.0f, 20.0f, 1e4f}) {
      for (const int group : {1, 6}) {
        ASSERT_NO_FATAL_FAILURE(Check({.group = group, .length = 77, .soft_cap = cap, .q_deviation = deviation}, 32));
      }
    }
  }
}

TEST_P(AttentionOptionsContract, SinkLogits) {
  for (const int group : {1, 2, 8}) {
    for (const int length : {1, 40, 100}) {
      ASSERT_NO_FATAL_FAILURE(Check({.num_kv_heads = 2, .group = group, .length = length, .sink_logits = true}, 32));
    }
  }
}

// A sink that outweighs everything, one that counts for nothing, and those at which sums end.
TEST_P(AttentionOptionsContract, ExtremeSinkLogits) {
  for (const float logit : {-1e4f, -100.0f, 60.0f, 100.0f, 500.0f, 720.0f, 1e4f, 3e38f}) {
    AttentionCase test(Of({.group = 2, .length = 70, .rows = 2, .sink_logits = true}), 7);
    test.sink_logits.assign(2, logit);
    test.Cache();
    ASSERT_NO_FATAL_FAILURE(test.Check(32)) << logit;
  }
}

// What a row does not see has no say, whatever it is: keys of NaN and infinity.
TEST_P(AttentionOptionsContract, UnseenKeysDoNotShow) {
  for (const uint16_t bad : {uint16_t{0x7e00}, uint16_t{0x7c00}, uint16_t{0xfc00}}) {
    for (const int group : {1, 6}) {
      AttentionCase test(
          Of({.group = group, .length = 90, .rows = 2, .first_position = 70, .window = 20, .sink_tokens = 3}), 9);
      for (int t = 3; t < 90; ++t) {
        if (t >= 51 && t <= 71) continue;
        for (int d = 0; d < 64; ++d) test.k[test.KvAt(t, 0, d)] = bad;
      }
      test.Cache();
      for (int t = 0; t < 90; ++t) {  // for the right answer, which multiplies 0 and NaN
        if (t < 3 || (t >= 51 && t <= 71)) continue;
        for (int d = 0; d < 64; ++d) test.k[test.KvAt(t, 0, d)] = 0;
      }
      ASSERT_NO_FATAL_FAILURE(test.Check(32));
    }
  }
}

// A row's bits depend neither on the rows beside it nor on where it stands among them.
TEST_P(AttentionOptionsContract, RowsAloneAreTheSameWithinTheBound) {
  AttentionCase together(Of({.num_kv_heads = 2, .group = 3, .length = 80, .rows = 4}), 11);
  together.Cache();
  const std::vector<RightRow> right = together.Right();
  for (int row = 0; row < 4; ++row) {
    AttentionCase alone(Of({.num_kv_heads = 2, .group = 3, .length = 80, .rows = 1, .first_position = 76 + row}), 11);
    for (size_t i = 0; i < alone.q.size(); ++i) alone.q[i] = together.q[together.At(row, 0) + i];
    alone.k = together.k;
    alone.v = together.v;
    alone.Cache();
    ASSERT_NO_FATAL_FAILURE(alone.Check());
    const RightRow& of_both = right[static_cast<size_t>(row * 6)];
    EXPECT_EQ(alone.Right()[0].values, of_both.values);
  }
}

// Everything at once, drawn by the seed.
TEST_P(AttentionOptionsContract, Combinations) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam().first) * 4 + static_cast<uint64_t>(GetParam().second));
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const auto one_of = [&](std::initializer_list<int> of) { return of.begin()[random() % of.size()]; };
  for (int i = 0; i < 120; ++i) {
    CaseSpec spec;
    spec.num_kv_heads = draw(1, 3);
    spec.group = draw(1, 9);
    spec.head_dim = 8 * draw(1, 18);
    spec.length = draw(1, 220);
    spec.block_tokens = one_of({32, 64, 96, 512});
    spec.rows = std::min(spec.length, one_of({1, 1, 2, 4, 5, 8, 20}));
    if (draw(0, 1) == 1) spec.first_position = draw(0, spec.length - spec.rows);
    if (draw(0, 1) == 1) spec.window = one_of({1, 2, 31, 32, 33, 70, 1000});
    spec.sink_tokens = one_of({0, 0, 1, 4, 40});
    spec.soft_cap = static_cast<float>(one_of({0, 0, 30, 50}));
    spec.sink_logits = draw(0, 2) == 0;
    spec.q_deviation = static_cast<float>(one_of({1, 1, 5, 30}));
    ASSERT_NO_FATAL_FAILURE(Check(spec, 32 * draw(1, 4)));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, AttentionOptionsContract, testing::ValuesIn(AllPairs()), PairName);

}  // namespace
}  // namespace fastdecode::kernels
