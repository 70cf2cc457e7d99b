// What every decode attention kernel must do with every pair of formats, against double
// precision: shapes, lengths, layouts and numbers of one query row. Query rows and masks:
// attention_options_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attention_case.h"
#include "format_pairs.h"
#include "stored.h"

namespace fastdecode::kernels {
namespace {

constexpr int kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 16, 71};

class DecodeAttentionContract : public PairTest {
 protected:
  // Every case of a sweep where the formats are equal; keys and values do not know of each other, so that
  // fewer do for the others.
  bool thorough() const { return GetParam().first == GetParam().second; }
  void Check(CaseSpec spec, int range_tokens = 0, int misalignment = 0) {
    AttentionCase test(Of(spec), ++seed_);
    test.Cache(misalignment);
    test.Check(range_tokens);
  }
  uint64_t seed_ = 0;
};

#define CHECK_CASE(...)                          \
  do {                                           \
    ASSERT_NO_FATAL_FAILURE(Check(__VA_ARGS__)); \
  } while (false)

TEST_P(DecodeAttentionContract, ShapesOfModels) {
  struct Shape {
    int heads, kv_heads, head_dim;
  };
  for (const Shape s : {Shape{32, 32, 128},
                        {32, 8, 128},
                        {64, 8, 128},
                        {40, 40, 128},
                        {14, 2, 64},
                        {9, 3, 64},
                        {71, 1, 64},
                        {96, 96, 128}}) {
    CHECK_CASE({.num_kv_heads = s.kv_heads, .group = s.heads / s.kv_heads, .head_dim = s.head_dim, .length = 70}, 32);
  }
}

TEST_P(DecodeAttentionContract, LengthsAroundVectorTileAndBlockEdges) {
  for (const int group : {1, 3, 5, 6, 8, 9}) {
    for (int length = 1; length <= 70; length += thorough() ? 1 : 7) {
      CHECK_CASE({.group = group, .head_dim = 48, .length = length}, 32);
    }
  }
  for (const int length : {95, 96, 97, 127, 128, 129, 511, 512, 513}) {
    CHECK_CASE({.group = 2, .length = length, .block_tokens = 64}, 64);
    if (thorough()) CHECK_CASE({.group = 6, .length = length, .block_tokens = 64}, 128);
  }
}

TEST_P(DecodeAttentionContract, EveryHeadDimWithEveryTailOfHeads) {
  for (int head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
    for (const int group : {1, 2, 6, 7, 9}) {
      if (thorough() || group == 1 || group == 6) {
        CHECK_CASE({.group = group, .head_dim = head_dim, .length = 45});
      }
    }
  }
}

TEST_P(DecodeAttentionContract, EveryGroupSize) {
  for (const int group : kGroups) {
    for (const int head_dim : {64, 80, 96, 128, 256}) {
      if (thorough() || head_dim == 80) CHECK_CASE({.group = group, .head_dim = head_dim, .length = 41});
    }
    CHECK_CASE({.num_kv_heads = 2, .group = group, .head_dim = 40, .length = 100}, 32);
  }
}

TEST_P(DecodeAttentionContract, BlockSizes) {
  for (const int block_tokens : {32, 64, 96, 512}) {
    for (const int length : {1, 31, 65, 150, 530}) {
      CHECK_CASE({.num_kv_heads = 2, .group = 3, .head_dim = 32, .length = length, .block_tokens = block_tokens}, 64);
    }
  }
}

TEST_P(DecodeAttentionContract, UnalignedPointers) {
  for (const int misalignment : {4, 8, 12, 20, 32, 60}) {
    CHECK_CASE({.num_kv_heads = 2, .group = 1, .head_dim = 128, .length = 70}, 0, misalignment);
    CHECK_CASE({.num_kv_heads = 2, .group = 5, .head_dim = 24, .length = 70}, 32, misalignment);
  }
}

TEST_P(DecodeAttentionContract, RangesMerge) {
  for (const int group : {1, 6}) {
    for (const int length : {1, 64, 65, 200, 1000}) {
      CHECK_CASE({.group = group, .head_dim = 72, .length = length}, 64);
    }
  }
  CHECK_CASE({.group = 1, .head_dim = 64, .length = 5000, .block_tokens = 128}, 512);
}

// Scores of +-10^4: the maximum is subtracted, also between ranges.
TEST_P(DecodeAttentionContract, ExtremeScores) {
  for (const int group : {1, 8}) {
    for (const int range_tokens : {0, 64}) {
      CHECK_CASE({.num_kv_heads = 2, .group = group, .length = 200, .q_deviation = 1e4f}, range_tokens);
    }
  }
}

TEST_P(DecodeAttentionContract, LargeAndTinyValues) {
  for (const float deviation : {1.2e4f, 1e-3f, 1e-6f}) {
    CHECK_CASE({.group = 2, .length = 77, .v_deviation = deviation}, 32);
    CHECK_CASE({.group = 7, .length = 77, .k_deviation = deviation, .v_deviation = deviation}, 32);
  }
}

// A sequence whose largest score comes last, first, or is the same everywhere.
TEST_P(DecodeAttentionContract, GrowingAndEqualScores) {
  for (const int group : {2, 6}) {
    for (const double slope : {0.25, -0.25, 0.0}) {
      AttentionCase test(Of({.group = group, .length = 150}), 4);
      for (uint16_t& x : test.q) x = NearestHalf(1);
      for (int t = 0; t < 150; ++t) {
        for (int d = 0; d < 64; ++d) test.k[test.KvAt(t, 0, d)] = NearestHalf(slope * t);
      }
      test.Cache();
      ASSERT_NO_FATAL_FAILURE(test.Check(0));
      ASSERT_NO_FATAL_FAILURE(test.Check(32));
    }
  }
}

// Heads of other pieces are left alone, and a piece's own do not depend on how many there are.
TEST_P(DecodeAttentionContract, RunsOfHeadsGiveTheSameBits) {
  for (const int group : {1, 3, 8}) {
    AttentionCase test(Of({.num_kv_heads = 6, .group = group, .length = 77}), 5);
    test.Cache();
    for (const AttentionKernel* kernel : RunnableKernels()) {
      const Output whole = test.Attend(*kernel);
      const Partials ranges = test.AttendRanges(*kernel, 32);
      for (const int heads : {1, 2, 4}) {
        const Output runs = test.Attend(*kernel, heads);
        EXPECT_EQ(runs.out, whole.out) << kernel->name << ", " << heads << " KV heads a piece";
        EXPECT_EQ(runs.lse, whole.lse);
        EXPECT_EQ(test.AttendRanges(*kernel, 32, heads).acc, ranges.acc);
      }
    }
  }
}

// Where blocks lie and how many tokens one has does not show.
TEST_P(DecodeAttentionContract, BlocksGiveTheSameBits) {
  for (const AttentionKernel* kernel : RunnableKernels()) {
    std::vector<uint16_t> first;
    for (const int block_tokens : {32, 64, 96, 512}) {
      AttentionCase test(Of({.num_kv_heads = 2, .group = 6, .length = 300, .block_tokens = block_tokens}), 5);
      test.Cache(block_tokens / 32 * 4);
      const std::vector<uint16_t> out = test.Attend(*kernel).out;
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << kernel->name << ", " << block_tokens << " tokens a block";
    }
  }
}

// Infinities and NaNs from outside stay in their own head, and show there.
TEST_P(DecodeAttentionContract, InfinityAndNaNStayInTheirHead) {
  for (const bool in_keys : {true, false}) {
    for (const uint16_t bad : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e00}}) {
      for (const int group : {3, 6}) {
        AttentionCase test(Of({.num_kv_heads = 2, .group = group, .length = 100}), 6);
        test.Cache();
        std::vector<Output> good;
        for (const AttentionKernel* kernel : RunnableKernels()) good.push_back(test.Attend(*kernel));
        (in_keys ? test.k : test.v)[test.KvAt(37, 1, 5)] = bad;
        test.Cache();
        size_t index = 0;
        for (const AttentionKernel* kernel : RunnableKernels()) {
          const Output out = test.Attend(*kernel);
          const Output merged = test.Merge(*kernel, test.AttendRanges(*kernel, 32));
          const auto half = static_cast<std::ptrdiff_t>(out.out.size() / 2);
          EXPECT_TRUE(std::equal(out.out.begin(), out.out.begin() + half, good[index++].out.begin())) << kernel->name;
          if (in_keys && bad != 0x7e00) continue;  // a key of infinity may be a weight of 0
          for (int h = group; h < 2 * group; ++h) {
            EXPECT_FALSE(std::isfinite(HalfValue(out.out[test.At(0, h, 5)]))) << kernel->name << ", head " << h;
            EXPECT_FALSE(std::isfinite(HalfValue(merged.out[test.At(0, h, 5)]))) << kernel->name << ", head " << h;
          }
        }
      }
    }
  }
}

// Softmax weights are positive and sum to 1: equal values come out as they are.
// The value is exact in each format: 127 steps of a power of two.
TEST_P(DecodeAttentionContract, EqualValuesComeOutUnchanged) {
  constexpr double kValue = 127.0 / 512;
  for (const int group : {4, 8}) {
    AttentionCase test(Of({.group = group, .head_dim = 128, .length = 333}), 8);
    for (uint16_t& x : test.v) x = NearestHalf(kValue);
    test.Cache();
    for (const AttentionKernel* kernel : RunnableKernels()) {
      EXPECT_THAT(test.Merge(*kernel, test.AttendRanges(*kernel, 128)).out, testing::Each(NearestHalf(kValue)))
          << kernel->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DecodeAttentionContract, testing::ValuesIn(AllPairs()), PairName);

class KernelContract : public testing::TestWithParam<const AttentionKernel*> {
 protected:
  void SetUp() override {
    const uint32_t missing = GetParam()->features & ~DetectCpuFeatures();
    if (missing != 0) GTEST_SKIP() << "this CPU lacks " << FeatureNames(missing) << ": none of the tests here runs it";
  }
};

TEST_P(KernelContract, Exp2StaysWithinItsBound) {
  double worst = 0;
  std::vector<float> x(4096), y(x.size());
  for (int chunk = 0; chunk < 500; ++chunk) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(-126.0 * (chunk * 4096.0 + static_cast<double>(i)) / (500 * 4096.0 - 1));
    }
    GetParam()->exp2(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double right = std::exp2(double{x[i]});
      worst = std::max(worst, std::fabs(double{y[i]} - right) / right);
    }
  }
  EXPECT_LT(worst, 2e-7);
  const float edge[] = {0.0f, -200.0f, -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN()};
  GetParam()->exp2(edge, y.data(), 4);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_LT(y[1], 1e-38f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
}

// The sizes that the layout's words give.
TEST_P(KernelContract, TilesAreAsLargeAsTheLayoutSays) {
  for (const auto& [keys, values] : AllPairs()) {
    for (int head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
      const KvLayout layout = MakeLayout(CodecOf(*GetParam(), keys, values), 3, head_dim, 64);
      EXPECT_EQ(layout.key_tile_bytes, StoredKeyBytes(keys, head_dim));
      EXPECT_EQ(layout.value_tile_bytes, StoredValueBytes(values, head_dim));
      EXPECT_EQ(KeyTileBytes(keys, head_dim), layout.key_tile_bytes);
      EXPECT_EQ(ValueTileBytes(values, head_dim), layout.value_tile_bytes);
      EXPECT_EQ(layout.key_tile_bytes % 64, 0);
      EXPECT_EQ(layout.value_tile_bytes % 64, 0);
      EXPECT_EQ(layout.block_bytes(), 3 * 2 * (layout.key_tile_bytes + layout.value_tile_bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelContract, testing::ValuesIn(AttentionKernels().begin(), AttentionKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace fastdecode::kernels
