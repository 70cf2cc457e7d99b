#include "sworker/model/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <numbers>

namespace fastdecode {
namespace {

// Long waves (low frequencies) are stretched by `factor`, short ones left alone, those
// between blended. The order of operations is Hugging Face's, in f32.
at::Tensor Llama3Frequencies(const RopeConfig& rope, const at::Tensor& plain) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const double low_wave = context / rope.low_freq_factor;
  const double high_wave = context / rope.high_freq_factor;
  const at::Tensor wave = plain.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor stretched = at::where(wave.gt(low_wave), plain.div(rope.factor), plain);
  const at::Tensor smooth =
      wave.reciprocal().mul(context).sub(rope.low_freq_factor).div(rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = smooth.neg().add(1).mul(stretched).div(rope.factor).add(smooth.mul(stretched));
  const at::Tensor between = wave.ge(high_wave).logical_and(wave.le(low_wave));
  return at::where(between, blended, stretched);
}

}  // namespace

at::Tensor RopeFrequencies(const RopeConfig& rope, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat).div(static_cast<double>(head_dim));
  const at::Tensor plain = at::pow(rope.theta, exponents).reciprocal();
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      return plain.div(rope.factor);
    case RopeType::kLlama3:
      return Llama3Frequencies(rope, plain);
  }
  return plain;
}

RopeTables MakeRopeTables(const RopeConfig& rope, int64_t head_dim, int64_t max_context) {
  const at::Tensor positions = at::arange(max_context, at::kLong).to(at::kFloat);
  const at::Tensor angles = at::outer(positions, RopeFrequencies(rope, head_dim));
  return {angles.cos(), angles.sin()};
}

}  // namespace fastdecode
