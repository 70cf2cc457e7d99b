// The CPU's layer against libtorch's operators, and both against the definitions.
#include "sworker/model/layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sworker/model/prefill_attention.h"
#include "sworker/model/sharded_linear.h"
#include "tests/unit/model/model_fixture.h"

namespace fastdecode::testing {
namespace {

struct Shape {
  int64_t hidden, inner, vocab;
  int32_t heads, kv_heads, head_dim;
  bool bias;
};

ModelConfig ConfigOf(const Shape& s) {
  ModelConfig config;
  config.hidden_size = s.hidden;
  config.intermediate_size = s.inner;
  config.vocab_size = s.vocab;
  config.attention = {.num_layers = 1, .num_heads = s.heads, .num_kv_heads = s.kv_heads, .head_dim = s.head_dim};
  config.rms_norm_eps = 1e-5;
  config.attention_bias = config.mlp_bias = s.bias;
  return config;
}

// The largest difference, in units of the reference's root mean square.
double Error(const at::Tensor& x, const at::Tensor& reference) {
  const at::Tensor right = reference.to(at::kDouble);
  return ((x.to(at::kDouble) - right).abs().max() / right.square().mean().sqrt()).item<double>();
}

class Layers : public ::testing::TestWithParam<Shape> {};

void Compare(const Shape& shape, at::ScalarType dtype, int threads, int64_t rows, double limit) {
  SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << ", " << threads << " threads, " << rows << " rows");
  c10::InferenceMode inference;
  const ModelConfig config = ConfigOf(shape);
  const auto device = MakeCpuRuntime(threads);
  const auto reader = MakeRandomReader(3, *device);
  const RopeTables rope = MakeRopeTables(config.rope, shape.head_dim, 500);
  const LayerWeights weights = *ReadLayer(*reader, config, dtype, 0);
  LayerWeights wide;  // the same values in f32, for libtorch
  const auto widen = [](const at::Tensor& x) { return x.defined() ? x.to(at::kFloat) : x; };
  wide = {widen(weights.input_norm), widen(weights.qkv),       widen(weights.qkv_bias), widen(weights.o),
          widen(weights.o_bias),     widen(weights.post_norm), widen(weights.gate),     widen(weights.gate_bias),
          widen(weights.up),         widen(weights.up_bias),   widen(weights.down),     widen(weights.down_bias)};
  const auto cpu = MakeCpuLayerFactory(config, *device, rope), torch = MakeTorchLayerFactory(config, *device, rope);
  const auto ours = cpu->MakeLayer(weights), reference = torch->MakeLayer(wide);

  const at::Tensor x = at::randn({rows, shape.hidden}).to(dtype),
                   o = at::randn({rows, config.attention.q_width()}).to(dtype);
  const at::Tensor positions = at::randint(500, {rows}, at::kLong);
  const at::Tensor qkv = ours->AttentionIn(x, positions), out = ours->AttentionOut(x, o);
  EXPECT_EQ(qkv.sizes(), at::IntArrayRef({rows, config.attention.qkv_width()}));
  EXPECT_TRUE(qkv.is_contiguous() && out.is_contiguous());
  EXPECT_EQ(qkv.scalar_type(), dtype);
  EXPECT_LT(Error(qkv, reference->AttentionIn(x.to(at::kFloat), positions)), limit);
  EXPECT_LT(Error(out, reference->AttentionOut(x.to(at::kFloat), o.to(at::kFloat))), limit);

  const OuterWeights outer = *ReadOuter(*reader, config, dtype);
  const at::Tensor logits = cpu->MakeHead(outer.norm, outer.head)->Logits(x);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_LT(Error(logits, torch->MakeHead(widen(outer.norm), widen(outer.head))->Logits(x.to(at::kFloat))), limit);
}

TEST_P(Layers, AgreeForAnyNumberOfRowsAndThreads) {
  for (const int threads : {1, 2, 5}) {
    for (const int64_t rows : {1, 7, 9, 65, 300}) {
      Compare(GetParam(), at::kFloat, threads, rows, 2e-5);
      Compare(GetParam(), at::kBFloat16, threads, rows, 0.06);  // a few roundings of 2^-9, at the largest of many
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Layers,
                         ::testing::Values(Shape{128, 384, 512, 8, 4, 16, false}, Shape{64, 172, 100, 8, 8, 8, true},
                                           Shape{72, 100, 65, 3, 1, 128, true}, Shape{576, 1536, 300, 9, 3, 64, false},
                                           Shape{48, 8, 7, 1, 1, 256, true}));

TEST(Rope, LinearScalingReadsTheAnglesOfEarlierPositions) {
  RopeConfig plain, linear;
  linear.type = RopeType::kLinear;
  linear.factor = 4;
  const RopeTables right = MakeRopeTables(plain, 64, 100), ours = MakeRopeTables(linear, 64, 400);
  for (int64_t position = 0; position < 100; ++position) {
    EXPECT_TRUE(at::allclose(ours.cos[4 * position], right.cos[position], 0, 1e-5));
    EXPECT_TRUE(at::allclose(ours.sin[4 * position], right.sin[position], 0, 1e-5));
  }
}

TEST(Rope, PositionsOutsideTheContextAreRefused) {
  const ModelConfig config = ConfigOf({64, 172, 100, 8, 8, 8, false});
  const auto device = MakeCpuRuntime(1);
  const RopeTables rope = MakeRopeTables(config.rope, 8, 10);
  const auto layer = MakeCpuLayerFactory(config, *device, rope)
                         ->MakeLayer(*ReadLayer(*MakeRandomReader(1, *device), config, at::kFloat, 0));
  const at::Tensor x = at::randn({1, 64});
  EXPECT_NO_THROW(layer->AttentionIn(x, at::full({1}, 9, at::kLong)));
  EXPECT_THROW(layer->AttentionIn(x, at::full({1}, 10, at::kLong)), c10::Error);
  EXPECT_THROW(layer->AttentionIn(x, at::full({1}, -1, at::kLong)), c10::Error);
}

TEST(PaddedRows, GrowsByLittleAndIsItsOwnPadding) {
  int64_t distinct = 0, last = 0;
  for (int64_t rows = 1; rows <= 8192; ++rows) {
    const int64_t padded = PaddedRows(rows);
    EXPECT_GE(padded, rows);
    EXPECT_LE(padded, rows + std::max<int64_t>(7, rows / 4)) << rows;
    EXPECT_EQ(PaddedRows(padded), padded);
    distinct += padded != last;
    last = padded;
  }
  EXPECT_LT(distinct, 170);  // times five products a model, below oneDNN's 1024
}

// softmax(q k^T / sqrt(d)) v over what came before, in double precision.
at::Tensor PlainCausal(const at::Tensor& qkv, const AttentionShape& s) {
  const int64_t n = qkv.size(0), group = s.num_heads / s.num_kv_heads;
  const at::Tensor wide = qkv.to(at::kDouble);
  const auto heads = [&](int64_t begin, int64_t count) {
    return wide.narrow(1, begin, count * s.head_dim).reshape({n, count, s.head_dim}).transpose(0, 1);
  };
  const at::Tensor q = heads(0, s.num_heads), k = heads(s.q_width(), s.num_kv_heads).repeat_interleave(group, 0);
  const at::Tensor v = heads(s.q_width() + s.kv_width(), s.num_kv_heads).repeat_interleave(group, 0);
  const at::Tensor future = at::ones({n, n}, at::kBool).triu(1);
  const at::Tensor scores = (at::matmul(q, k.transpose(1, 2)) / std::sqrt(s.head_dim)).masked_fill(future, -INFINITY);
  return at::matmul(at::softmax(scores, -1), v).transpose(0, 1).reshape({n, s.q_width()});
}

TEST(CausalAttention, IsTheDefinitionForEachPrompt) {
  const std::vector<int64_t> lengths = {1, 33, 2, 300};
  for (const AttentionShape& shape :
       {AttentionShape{1, 4, 4, 16}, AttentionShape{1, 8, 2, 40}, AttentionShape{1, 7, 1, 64}}) {
    for (const int threads : {1, 3}) {
      const auto device = MakeCpuRuntime(threads);
      const at::Tensor qkv = at::randn({336, shape.qkv_width()});
      const at::Tensor o = CausalAttention(qkv, lengths, shape, *device);
      const at::Tensor half = CausalAttention(qkv.to(at::kBFloat16), lengths, shape, *device);
      EXPECT_EQ(half.scalar_type(), at::kBFloat16);
      int64_t row = 0;
      for (const int64_t rows : lengths) {
        const at::Tensor right = PlainCausal(qkv.narrow(0, row, rows), shape);
        EXPECT_LT(Error(o.narrow(0, row, rows), right), 1e-5);
        EXPECT_LT(Error(half.narrow(0, row, rows), right), 0.15);
        row += rows;
      }
    }
  }
}

TEST(CausalAttention, RefusesLengthsThatDoNotFit) {
  const auto device = MakeCpuRuntime(1);
  const AttentionShape shape{1, 1, 1, 8};
  const at::Tensor qkv = at::randn({4, shape.qkv_width()});
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{3}, {5}, {0, 4}, {-1, 5}}) {
    EXPECT_THROW(CausalAttention(qkv, lengths, shape, *device), c10::Error);
  }
}

TEST(RandomWeights, AreNormalSeededAndIndependentOfThreads) {
  const auto one = MakeCpuRuntime(1), three = MakeCpuRuntime(3);
  const at::Tensor a = at::empty({1001, 999}), b = at::empty({1001, 999}), c = at::empty({1001, 999});
  ASSERT_TRUE(MakeRandomReader(9, *one)->Fill("x.weight", a).ok());
  ASSERT_TRUE(MakeRandomReader(9, *three)->Fill("x.weight", b).ok());
  EXPECT_TRUE(at::equal(a, b));
  ASSERT_TRUE(MakeRandomReader(10, *one)->Fill("x.weight", b).ok());
  ASSERT_TRUE(MakeRandomReader(9, *one)->Fill("y.weight", c).ok());
  for (const at::Tensor& other : {b, c}) {  // uncorrelated: |r| within 5 / sqrt(n)
    EXPECT_LT(std::abs((a * other).mean().item<double>()) / 4e-4, 5e-3);
  }
  EXPECT_NEAR(a.mean().item<double>(), 0, 1e-4);
  EXPECT_NEAR(a.std().item<double>(), 0.02, 1e-4);
  EXPECT_NEAR(((a / 0.02).pow(4).mean()).item<double>(), 3, 0.05);  // a normal distribution's
  const at::Tensor norm = at::empty({16}, at::kBFloat16);
  ASSERT_TRUE(MakeRandomReader(9, *one)->Fill("model.norm.weight", norm).ok());
  EXPECT_TRUE(at::equal(norm, at::ones({16}, at::kBFloat16)));
}

}  // namespace
}  // namespace fastdecode::testing
