// What every decode attention kernel must do, against double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attention_case.h"

namespace fastdecode::kernels {
namespace {

constexpr int kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 16, 71};
constexpr int kSpecialDims[] = {64, 80, 96, 128, 256};

class DecodeAttentionContract : public testing::TestWithParam<const DecodeAttentionKernel*> {
 protected:
  void SetUp() override {
    const uint32_t missing = kernel().features & ~DetectCpuFeatures();
    if (missing != 0) GTEST_SKIP() << "this CPU lacks " << FeatureNames(missing);
  }
  const DecodeAttentionKernel& kernel() const { return *GetParam(); }
  void Check(const AttentionShapeOfCase& shape, int range_tokens = 0, int misalignment = 0) {
    AttentionCase test(shape, ++seed_);
    test.Cache(misalignment);
    test.Check(kernel(), range_tokens);
  }
  uint64_t seed_ = 0;
};

TEST_P(DecodeAttentionContract, LengthsAroundVectorTileAndBlockEdges) {
  for (int group : {1, 2, 4, 7, 8}) {
    for (int length = 1; length <= 70; ++length) Check({2, group, 64, 32, length});
    for (int length : {95, 96, 97, 127, 128, 129, 511, 512, 513}) Check({1, group, 128, 32, length});
  }
}

TEST_P(DecodeAttentionContract, EveryHeadDimWithEveryTailOfHeads) {
  for (int head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
    for (int group : {1, 2, 4, 7, 8}) Check({1, group, head_dim, 32, 45});
  }
}

TEST_P(DecodeAttentionContract, EveryGroupSize) {
  for (int group : kGroups) {
    for (int head_dim : kSpecialDims) Check({2, group, head_dim, 32, 41});
    Check({1, group, 40, 16, 100}, 32);
  }
}

TEST_P(DecodeAttentionContract, BlockSizes) {
  for (int block_tokens : {1, 3, 8, 16, 31, 32, 33, 64, 128, 500}) {
    for (int length : {1, 31, 65, 150}) Check({2, 3, 64, block_tokens, length});
  }
}

TEST_P(DecodeAttentionContract, UnalignedPointers) {
  for (int misalignment : {1, 2, 3, 4, 8, 9}) {
    Check({2, 1, 128, 32, 70}, 0, misalignment);
    Check({2, 5, 64, 32, 70}, 32, misalignment);
  }
}

TEST_P(DecodeAttentionContract, RangesMerge) {
  for (int group : {1, 3, 8}) {
    for (int length : {1, 64, 65, 200, 1000}) Check({2, group, 64, 32, length}, 64);
  }
  Check({1, 1, 128, 32, 5000}, 512);
}

// Heads of other pieces are left alone, and a piece's own do not depend on how many there are.
TEST_P(DecodeAttentionContract, RunsOfHeadsGiveTheSameBits) {
  AttentionCase test({6, 3, 64, 32, 77}, 5);
  test.Cache();
  const std::vector<uint16_t> whole = test.Attend(kernel());
  for (int heads : {1, 2, 4}) EXPECT_EQ(test.Attend(kernel(), 0, heads), whole) << heads << " KV heads a piece";
}

// Scores of +-10^4: the maximum is subtracted, also between ranges.
TEST_P(DecodeAttentionContract, ExtremeScores) {
  for (const int range_tokens : {0, 64}) {
    AttentionCase test({2, 4, 64, 32, 200}, 3, /*q_deviation=*/1e4);
    test.Cache();
    test.Check(kernel(), range_tokens);
  }
}

// A sequence whose largest score comes last, first, or is the same everywhere.
TEST_P(DecodeAttentionContract, GrowingAndEqualScores) {
  for (const double slope : {0.25, -0.25, 0.0}) {
    AttentionCase test({1, 2, 64, 32, 150}, 4);
    for (size_t i = 0; i < test.q.size(); ++i) test.q[i] = NearestHalf(1);
    for (int t = 0; t < 150; ++t) {
      for (size_t d = 0; d < 64; ++d) test.k[static_cast<size_t>(t) * 64 + d] = NearestHalf(slope * t);
    }
    test.Cache();
    test.Check(kernel(), 0);
    test.Check(kernel(), 32);
  }
}

// Infinities and NaNs from outside give NaN, not a crash, and stay in their own head.
TEST_P(DecodeAttentionContract, InfinityAndNaNStayInTheirHead) {
  for (const uint16_t bad : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e00}}) {
    for (const int range_tokens : {0, 32}) {
      AttentionCase test({2, 3, 64, 32, 100}, 6);
      test.Cache();
      const std::vector<uint16_t> good = test.Attend(kernel(), range_tokens);
      test.k[(37 * 2 + 1) * 64 + 5] = bad;  // token 37, KV head 1
      test.v[(40 * 2 + 1) * 64 + 9] = bad;
      test.Cache();
      const std::vector<uint16_t> out = test.Attend(kernel(), range_tokens);
      const auto half = static_cast<std::ptrdiff_t>(out.size() / 2);
      EXPECT_TRUE(std::equal(out.begin(), out.begin() + half, good.begin()));
      EXPECT_FALSE(std::isfinite(HalfValue(out[static_cast<size_t>(half) + 9])));
    }
  }
}

// Softmax weights are positive and sum to 1: equal values come out as they are.
TEST_P(DecodeAttentionContract, EqualValuesComeOutUnchanged) {
  AttentionCase test({1, 4, 128, 32, 333}, 8);
  for (uint16_t& x : test.v) x = NearestHalf(0.3330078125);
  test.Cache();
  EXPECT_THAT(test.Attend(kernel(), 128), testing::Each(NearestHalf(0.3330078125)));
}

TEST_P(DecodeAttentionContract, Exp2StaysWithinItsBound) {
  double worst = 0;
  std::vector<float> x(4096), y(x.size());
  for (int chunk = 0; chunk < 500; ++chunk) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(-126.0 * (chunk * 4096.0 + static_cast<double>(i)) / (500 * 4096.0 - 1));
    }
    kernel().exp2(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double right = std::exp2(double{x[i]});
      worst = std::max(worst, std::fabs(double{y[i]} - right) / right);
    }
  }
  EXPECT_LT(worst, 2e-7);
  const float edge[] = {0.0f, -200.0f, -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN()};
  kernel().exp2(edge, y.data(), 4);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_LT(y[1], 1e-38f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
}

std::vector<const DecodeAttentionKernel*> All() {
  std::vector<const DecodeAttentionKernel*> kernels;
  for (const DecodeAttentionKernel& kernel : DecodeAttentionKernels()) kernels.push_back(&kernel);
  return kernels;
}

INSTANTIATE_TEST_SUITE_P(All, DecodeAttentionContract, testing::ValuesIn(All()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace fastdecode::kernels
