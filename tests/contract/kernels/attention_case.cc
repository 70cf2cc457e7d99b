#include "attention_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastdecode::kernels {
namespace {

constexpr uint16_t kNaN = 0x7e00;

template <typename T>
T* Align(std::vector<std::byte>& bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  return reinterpret_cast<T*>(bytes.data() + (-address & 63));
}

}  // namespace

double HalfValue(uint16_t half) {
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

uint16_t NearestHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const int exponent = magnitude == 0 ? -14 : std::max(-14, std::ilogb(magnitude));
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));  // 1024 .. 2048, or less
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + steps));
}

AttentionCase::AttentionCase(const AttentionShapeOfCase& shape, uint64_t seed, double q_deviation, double v_deviation)
    : scale(static_cast<float>(1 / std::sqrt(shape.head_dim))), shape_(shape), random_(seed) {
  std::normal_distribution<double> normal;
  const auto fill = [&](std::vector<uint16_t>& to, int64_t count, double deviation) {
    to.resize(static_cast<size_t>(count));
    for (uint16_t& x : to) x = NearestHalf(normal(random_) * deviation);
  };
  const int64_t kv = int64_t{shape.length} * shape.num_kv_heads * shape.head_dim;
  fill(q, int64_t{num_heads()} * shape.head_dim, q_deviation);
  fill(k, kv, 1);
  fill(v, kv, v_deviation);
}

void AttentionCase::Cache(int misalignment) {
  const int blocks = (shape_.length + shape_.block_tokens - 1) / shape_.block_tokens;
  const int64_t block_elements = BlockElements(shape_.num_kv_heads, shape_.block_tokens, shape_.head_dim);
  const int pool_blocks = blocks + 2;
  pool_.assign(static_cast<size_t>(pool_blocks * block_elements + 64), kNaN);
  const auto address = reinterpret_cast<uintptr_t>(pool_.data());
  pool_offset_ = (-address & 63) / 2 + static_cast<size_t>(misalignment);
  table_.resize(static_cast<size_t>(pool_blocks));
  for (size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<uint32_t>(i);
  std::shuffle(table_.begin(), table_.end(), random_);
  table_.resize(static_cast<size_t>(blocks));
  for (int t = 0; t < shape_.length; ++t) {
    uint16_t* const block =
        pool_.data() + pool_offset_ + table_[static_cast<size_t>(t / shape_.block_tokens)] * block_elements;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      // The layout as the header words it: [num_kv_heads][K|V][block_tokens][head_dim].
      const int64_t from = (int64_t{t} * shape_.num_kv_heads + h) * shape_.head_dim;
      const int64_t row = t % shape_.block_tokens;
      for (int d = 0; d < shape_.head_dim; ++d) {
        block[((int64_t{h} * 2 + 0) * shape_.block_tokens + row) * shape_.head_dim + d] =
            k[static_cast<size_t>(from + d)];
        block[((int64_t{h} * 2 + 1) * shape_.block_tokens + row) * shape_.head_dim + d] =
            v[static_cast<size_t>(from + d)];
      }
    }
  }
}

std::vector<uint16_t> AttentionCase::Attend(const DecodeAttentionKernel& kernel, int range_tokens, int kv_heads) const {
  std::vector<std::byte> scratch(
      static_cast<size_t>(DecodeAttentionScratchBytes(shape_.num_kv_heads, shape_.group, shape_.head_dim)) + 64);
  const size_t heads = static_cast<size_t>(num_heads());
  const size_t width = heads * static_cast<size_t>(shape_.head_dim);
  // One element more on both sides: neither alignment nor the neighbours' values are the kernel's.
  std::vector<uint16_t> query(width + 1, kNaN);
  for (size_t i = 0; i < width; ++i) query[i + 1] = q[i];
  std::vector<uint16_t> out(width + 2, 0x1234);
  const int ranges = range_tokens == 0 ? 1 : (shape_.length + range_tokens - 1) / range_tokens;
  std::vector<float> acc(width * static_cast<size_t>(ranges)), max(heads * static_cast<size_t>(ranges)),
      sum(max.size());
  DecodeAttentionParams p;
  p.num_kv_heads = shape_.num_kv_heads;
  p.group = shape_.group;
  p.head_dim = shape_.head_dim;
  p.block_tokens = shape_.block_tokens;
  p.scale = scale;
  p.blocks = pool_.data() + pool_offset_;
  p.block_table = table_.data();
  p.q = query.data() + 1;
  p.scratch = Align<void>(scratch);
  const auto attend = [&] {
    const int step = kv_heads == 0 ? shape_.num_kv_heads : kv_heads;
    for (p.kv_head_begin = 0; p.kv_head_begin < shape_.num_kv_heads; p.kv_head_begin = p.kv_head_end) {
      p.kv_head_end = std::min(p.kv_head_begin + step, shape_.num_kv_heads);
      kernel.attend(p);
    }
  };
  if (range_tokens == 0) {
    p.token_end = shape_.length;
    p.out = out.data() + 1;
    attend();
  } else {
    for (int r = 0; r < ranges; ++r) {
      p.token_begin = r * range_tokens;
      p.token_end = std::min(shape_.length, (r + 1) * range_tokens);
      p.partial_acc = acc.data() + static_cast<size_t>(r) * width;
      p.partial_max = max.data() + static_cast<size_t>(r) * heads;
      p.partial_sum = sum.data() + static_cast<size_t>(r) * heads;
      attend();
    }
    MergeParams m;
    m.num_ranges = ranges;
    m.num_heads = num_heads();
    m.head_dim = shape_.head_dim;
    m.head_end = num_heads();
    m.partial_acc = acc.data();
    m.partial_max = max.data();
    m.partial_sum = sum.data();
    m.out = out.data() + 1;
    kernel.merge(m);
  }
  EXPECT_EQ(out.front(), 0x1234);
  EXPECT_EQ(out.back(), 0x1234);
  out.pop_back();
  out.erase(out.begin());
  return out;
}

void AttentionCase::Expect(std::vector<double>* values, std::vector<double>* tolerances) const {
  constexpr double kUnit = 0x1p-24;  // rounding of f32
  const int dim = shape_.head_dim;
  values->assign(static_cast<size_t>(num_heads() * dim), 0);
  tolerances->assign(values->size(), 0);
  std::vector<double> weights(static_cast<size_t>(shape_.length));
  for (int h = 0; h < num_heads(); ++h) {
    const auto key = [&](int t) {
      return static_cast<size_t>(t * shape_.num_kv_heads + h / shape_.group) * static_cast<size_t>(dim);
    };
    double largest = -std::numeric_limits<double>::infinity();
    double magnitude = 0;  // of the terms of a score
    for (int t = 0; t < shape_.length; ++t) {
      double score = 0;
      double terms = 0;
      for (int d = 0; d < dim; ++d) {
        const double term = HalfValue(q[static_cast<size_t>(h * dim + d)]) *
                            HalfValue(k[key(t) + static_cast<size_t>(d)]) * double{scale};
        score += term;
        terms += std::fabs(term);
      }
      weights[static_cast<size_t>(t)] = score;
      largest = std::max(largest, score);
      magnitude = std::max(magnitude, terms);
    }
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - largest);
    // A score is off by its terms' rounding (a chain of dim / 8 + 3 sums, the folded
    // scale, the difference to the maximum), a weight by twice that plus exp's 2e-7; sums
    // over tokens add a rounding a step.
    const double score_error = (dim / 8.0 + 8) * kUnit * magnitude;
    const double relative = 2 * score_error + 4e-7 + 2 * kUnit * (shape_.length + 8);
    for (int d = 0; d < dim; ++d) {
      double value = 0;
      double terms = 0;
      for (int t = 0; t < shape_.length; ++t) {
        const double term = weights[static_cast<size_t>(t)] / sum * HalfValue(v[key(t) + static_cast<size_t>(d)]);
        value += term;
        terms += std::fabs(term);
      }
      (*values)[static_cast<size_t>(h * dim + d)] = value;
      (*tolerances)[static_cast<size_t>(h * dim + d)] = std::fabs(value) * 0x1p-11 + 0x1p-25 + relative * terms;
    }
  }
}

void AttentionCase::Check(const DecodeAttentionKernel& kernel, int range_tokens) const {
  std::vector<double> values, tolerances;
  Expect(&values, &tolerances);
  const std::vector<uint16_t> out = Attend(kernel, range_tokens);
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::fabs(HalfValue(out[i]) - values[i]);
    ASSERT_LE(error, tolerances[i]) << kernel.name << ": kv heads " << shape_.num_kv_heads << ", group " << shape_.group
                                    << ", head_dim " << shape_.head_dim << ", length " << shape_.length
                                    << ", block_tokens " << shape_.block_tokens << ", range " << range_tokens
                                    << ": element " << i << " is " << HalfValue(out[i]) << ", right is " << values[i];
  }
}

}  // namespace fastdecode::kernels
