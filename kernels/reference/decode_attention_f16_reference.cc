// The plain kernel: one query head after the other, one token after the other, in
// double precision. What the others are compared with, and what a CPU without AVX2
// can run.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/decode_attention.h"
#include "kernels/f16.h"

namespace fastdecode::kernels {
namespace {

constexpr double kLog2E = std::numbers::log2e;

struct OnlineSoftmax {
  double max = -std::numeric_limits<float>::max();  // of score * log2(e), rounded up or down to an f32
  double sum = 0;
  double acc[kMaxHeadDim] = {};  // sum of 2^(score * log2(e) - max) * v
};

double Dot(const uint16_t* a, const uint16_t* b, int32_t size) {
  double sum = 0;
  for (int32_t d = 0; d < size; ++d) sum += double{HalfToFloat(a[d])} * double{HalfToFloat(b[d])};
  return sum;
}

void AddToken(double score, const uint16_t* value, int32_t head_dim, OnlineSoftmax& state) {
  score *= kLog2E;
  if (score > state.max) {
    const double max = double{static_cast<float>(score)};
    const double factor = std::exp2(state.max - max);
    state.sum *= factor;
    for (int32_t d = 0; d < head_dim; ++d) state.acc[d] *= factor;
    state.max = max;
  }
  const double weight = std::exp2(score - state.max);
  state.sum += weight;
  for (int32_t d = 0; d < head_dim; ++d) state.acc[d] += weight * double{HalfToFloat(value[d])};
}

void Store(const DecodeAttentionParams& p, int64_t head, const OnlineSoftmax& state) {
  const int64_t row = head * p.head_dim;
  if (p.out != nullptr) {
    for (int32_t d = 0; d < p.head_dim; ++d) {
      p.out[row + d] = FloatToHalf(static_cast<float>(state.acc[d] / state.sum));
    }
    return;
  }
  for (int32_t d = 0; d < p.head_dim; ++d) p.partial_acc[row + d] = static_cast<float>(state.acc[d]);
  p.partial_max[head] = static_cast<float>(state.max);
  p.partial_sum[head] = static_cast<float>(state.sum);
}

}  // namespace

void AttendF16Reference(const DecodeAttentionParams& p) {
  const int64_t block_elements = BlockElements(p.num_kv_heads, p.block_tokens, p.head_dim);
  for (int32_t kv_head = p.kv_head_begin; kv_head < p.kv_head_end; ++kv_head) {
    for (int64_t head = int64_t{kv_head} * p.group; head < int64_t{kv_head + 1} * p.group; ++head) {
      OnlineSoftmax state;
      for (int32_t token = p.token_begin; token < p.token_end; ++token) {
        const uint16_t* block = p.blocks + p.block_table[token / p.block_tokens] * block_elements;
        const int64_t row = int64_t{token % p.block_tokens} * p.head_dim;
        const uint16_t* key = block + KeyOffset(kv_head, p.block_tokens, p.head_dim) + row;
        const uint16_t* value = block + ValueOffset(kv_head, p.block_tokens, p.head_dim) + row;
        AddToken(double{p.scale} * Dot(p.q + head * p.head_dim, key, p.head_dim), value, p.head_dim, state);
      }
      Store(p, head, state);
    }
  }
}

void MergeF16Reference(const MergeParams& p) {
  for (int64_t head = p.head_begin; head < p.head_end; ++head) {
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t r = 0; r < p.num_ranges; ++r) max = std::max(max, double{p.partial_max[r * p.num_heads + head]});
    double sum = 0;
    double acc[kMaxHeadDim] = {};
    for (int64_t r = 0; r < p.num_ranges; ++r) {
      const int64_t index = r * p.num_heads + head;
      const double factor = std::exp2(double{p.partial_max[index]} - max);
      sum += factor * double{p.partial_sum[index]};
      for (int32_t d = 0; d < p.head_dim; ++d) acc[d] += factor * double{p.partial_acc[index * p.head_dim + d]};
    }
    for (int32_t d = 0; d < p.head_dim; ++d) {
      p.out[head * p.head_dim + d] = FloatToHalf(static_cast<float>(acc[d] / sum));
    }
  }
}

void Exp2F16Reference(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::exp2(x[i]);
}

}  // namespace fastdecode::kernels
