#include "sworker/model/sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "sworker/model/draw.h"
#include "sworker/model/philox.h"

namespace fastdecode {
namespace {

// The known-answer vectors that come with Random123 (tests/kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  using Counter = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformUsesAllOfSeedAndPosition) {
  EXPECT_EQ(PhiloxUniform(0, 0), static_cast<float>(0x6627e8) * 0x1p-24f);  // the first known answer's high 24 bits
  EXPECT_NE(PhiloxUniform(1, 0), PhiloxUniform(uint64_t{1} << 32, 0));
  EXPECT_NE(PhiloxUniform(0, 1), PhiloxUniform(0, uint64_t{1} << 32));
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const float u = PhiloxUniform(7, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += static_cast<double>(u);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // 5 standard deviations
}

constexpr int64_t kVocab = 50;

at::Tensor SomeLogits() {
  at::Tensor logits = at::empty({kVocab});
  for (int64_t i = 0; i < kVocab; ++i) logits[i] = 2.0 * std::sin(static_cast<double>(7 * i + 1));
  return logits;
}

// What the warpers of Hugging Face leave, straight from their definitions: temperature;
// then all but the k best go; then those go before which p or more lies.
std::vector<double> Expected(const at::Tensor& logits, const SamplingParams& params) {
  std::vector<double> p;
  std::vector<size_t> order(kVocab);
  std::iota(order.begin(), order.end(), size_t{0});
  for (int64_t i = 0; i < kVocab; ++i)
    p.push_back(std::exp(logits[i].item<double>() / static_cast<double>(params.temperature)));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  const auto normalize = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
  };
  if (params.top_k > 0) {
    for (size_t rank = static_cast<size_t>(params.top_k); rank < kVocab; ++rank) p[order[rank]] = 0;
  }
  normalize();
  double before = 0;
  for (size_t rank = 0; rank < kVocab; ++rank) {
    const double mine = p[order[rank]];
    if (rank > 0 && before >= static_cast<double>(params.top_p)) p[order[rank]] = 0;
    before += mine;
  }
  normalize();
  return p;
}

struct Draws {
  const char* name;
  SamplingParams params;
};

class Distribution : public ::testing::TestWithParam<Draws> {};

// Pearson's chi-square over 20000 draws, whose seeds are fixed: a statistic far beyond its
// expectation of (bins - 1) means that the distribution is another one.
void ExpectDistribution(const std::vector<int64_t>& ids, const std::vector<double>& p, const char* what) {
  std::vector<int64_t> counts(kVocab, 0);
  for (const int64_t id : ids) ++counts[static_cast<size_t>(id)];
  double statistic = 0, freedom = -1;
  for (size_t i = 0; i < kVocab; ++i) {
    const double expected = p[i] * static_cast<double>(ids.size());
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << what << ": id " << i << " was to be cut off";
      continue;
    }
    statistic += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
    freedom += 1;
  }
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 5) << what;
}

TEST_P(Distribution, IsHuggingFaces) {
  const at::Tensor logits = SomeLogits();
  const std::vector<double> p = Expected(logits, GetParam().params);
  constexpr int64_t kDraws = 20000;
  std::vector<SamplingRow> rows;
  std::vector<DrawInput> inputs;
  for (int64_t i = 0; i < kDraws; ++i) {
    rows.push_back({&GetParam().params, static_cast<uint64_t>(i)});
    inputs.push_back({&GetParam().params, PhiloxUniform(GetParam().params.seed, static_cast<uint64_t>(i))});
  }
  const at::Tensor many = logits.expand({kDraws, kVocab}).contiguous();
  const auto list = [](const at::Tensor& ids) {
    return std::vector<int64_t>(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
  };
  ExpectDistribution(list(Sample(many, rows).ids), p, "CPU");
  ExpectDistribution(list(DrawFromRows(many, inputs).contiguous()), p, "libtorch's operators");
}

SamplingParams Params(float temperature, int top_k, float top_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.seed = 20240229;
  return params;
}

INSTANTIATE_TEST_SUITE_P(Params, Distribution,
                         ::testing::Values(Draws{"plain", Params(1, 0, 1)}, Draws{"hot", Params(2.5f, 0, 1)},
                                           Draws{"cold", Params(0.3f, 0, 1)}, Draws{"k1", Params(1, 1, 1)},
                                           Draws{"k7", Params(1, 7, 1)}, Draws{"k_beyond", Params(1, 1000, 1)},
                                           Draws{"p9", Params(1, 0, 0.9f)}, Draws{"p_tiny", Params(1, 0, 1e-6f)},
                                           Draws{"k20_p7_cold", Params(0.7f, 20, 0.7f)}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Sampler, TopPOverALargeFlatVocabularyKeepsItsShare) {
  const int64_t vocab = 20000;  // needs far more candidates than are looked at first
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = -1e-4f * static_cast<float>(i);
  const SamplingParams params = Params(1, 0, 0.5f);
  // The nucleus: the first n ids with (1 - e^(-n/10000)) / (1 - e^-2) >= 0.5.
  const double n = -10000 * std::log(1 - 0.5 * (1 - std::exp(-2.0)));
  EXPECT_NEAR(static_cast<double>(DrawFromRow(logits, params, 0.9999999f)), n, 3);
  EXPECT_EQ(DrawFromRow(logits, params, 0.0f), 0);
}

TEST(Sampler, GreedyTakesTheLowestOfEqualsAndLogprobsAreRaw) {
  const at::Tensor logits = at::tensor({1.0f, 3.0f, 3.0f, 0.0f, 2.0f, 2.0f, 0.0f, 2.0f}).view({2, 4});
  SamplingParams asks = Params(0, 0, 1), silent = Params(0, 0, 1);
  asks.logprobs = true;
  const std::vector<SamplingRow> rows = {{&asks, 0}, {&silent, 0}};
  const Sampled sampled = Sample(logits, rows);
  EXPECT_EQ(sampled.ids[0].item<int64_t>(), 1);
  EXPECT_EQ(sampled.ids[1].item<int64_t>(), 0);
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + 1;
  EXPECT_NEAR(sampled.logprobs[0].item<double>(), 3 - std::log(sum), 1e-6);
  EXPECT_EQ(sampled.logprobs[1].item<double>(), 0);
}

TEST(Sampler, LogprobsOfADrawIgnoreTemperatureAndCuts) {
  SamplingParams params = Params(5, 3, 0.8f);
  params.logprobs = true;
  const at::Tensor logits = SomeLogits().view({1, kVocab});
  for (uint64_t position = 0; position < 20; ++position) {
    const std::vector<SamplingRow> rows = {{&params, position}};
    const Sampled sampled = Sample(logits, rows);
    const at::Tensor right = at::log_softmax(logits, 1, at::kDouble)[0][sampled.ids[0].item<int64_t>()];
    EXPECT_NEAR(sampled.logprobs[0].item<double>(), right.item<double>(), 1e-6);
  }
}

TEST(Sampler, DrawsDependOnSeedAndPositionAlone) {
  const std::vector<SamplingParams> params = {Params(1, 0, 1), Params(0.8f, 5, 1), Params(1.2f, 0, 0.9f),
                                              Params(0, 0, 1), Params(0.9f, 40, 0.5f)};
  std::vector<SamplingRow> rows;
  for (uint64_t i = 0; i < 40; ++i) rows.push_back({&params[i % params.size()], 1000 + i});
  const at::Tensor logits = at::randn({40, kVocab}) * 2;
  const Sampled together = Sample(logits, rows);
  std::vector<SamplingRow> backwards(rows.rbegin(), rows.rend());
  const Sampled reversed = Sample(logits.flip(0).contiguous(), backwards);
  for (int64_t i = 0; i < 40; ++i) {
    const std::vector<SamplingRow> alone = {rows[static_cast<size_t>(i)]};
    const int64_t id = Sample(logits.narrow(0, i, 1), alone).ids[0].item<int64_t>();
    EXPECT_EQ(id, together.ids[i].item<int64_t>());
    EXPECT_EQ(id, reversed.ids[39 - i].item<int64_t>());
  }
}

TEST(Sampler, NansAndInfinitiesGiveAnIdOfTheVocabulary) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const SamplingParams& params : {Params(1, 0, 1), Params(1, 2, 1), Params(1, 0, 0.5f), Params(1e-30f, 0, 1)}) {
    EXPECT_EQ(DrawFromRow(std::vector<float>{nan, 1, nan, -inf}, params, 0.99f), 1);
    EXPECT_EQ(DrawFromRow(std::vector<float>{0, inf, 0, 0}, params, 0.99f), 1);
    EXPECT_LT(DrawFromRow(std::vector<float>{nan, nan}, params, 0.5f), 2);
    EXPECT_LT(DrawFromRow(std::vector<float>{-inf, -inf}, params, 0.5f), 2);
  }
}

TEST(Sampler, NoRows) {
  const Sampled sampled = Sample(at::empty({0, kVocab}), {});
  EXPECT_EQ(sampled.ids.numel(), 0);
}

}  // namespace
}  // namespace fastdecode
