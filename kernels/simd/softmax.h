// The online softmax over a tile's scores, for any vector unit.
//
// 2^x for x <= 0: x = n + f with f in [-0.5, 0.5]; 2^f by a polynomial of degree 6 that is
// exact at 0 (Chebyshev fit, relative error 9e-9), times 2^n. With the rounding of f32
// arithmetic the relative error stays below 2e-7 for -126 <= x <= 0, which a test checks;
// below -126 the result is 0, as in flush-to-zero. NaN gives NaN.
//
// A row's maximum is looked at lane by lane and summed up across lanes only when some lane
// has passed it, which is rare after the first tiles.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

// 2^f for f in [-0.5, 0.5].
template <class I>
FD_INLINE inline typename I::F Exp2Fraction(typename I::F f) {
  typename I::F p = I::Set(0.00015461448f);
  p = I::Fma(p, f, I::Set(0.0013390867f));
  p = I::Fma(p, f, I::Set(0.009618057f));
  p = I::Fma(p, f, I::Set(0.05550357f));
  p = I::Fma(p, f, I::Set(0.2402265f));
  p = I::Fma(p, f, I::Set(0.6931472f));
  return I::Fma(p, f, I::Set(1.0f));
}

// cap * tanh(score / cap): with e = 2^(-2 |x| log2(e)), tanh |x| = (1 - e) / (1 + e).
template <class I>
typename I::F SoftCap(typename I::F score, float cap) {
  using F = typename I::F;
  const F x = I::Mul(score, I::Set(1.0f / cap));
  const F e = I::Exp2(I::Mul(I::Abs(x), I::Set(-2.88539008f)));
  const F tanh = I::Div(I::Sub(I::Set(1.0f), e), I::Add(I::Set(1.0f), e));
  return I::Mul(I::CopySign(tanh, x), I::Set(cap));
}

template <class I>
void Softmax(const SoftmaxArgs& a) {
  using F = typename I::F;
  constexpr int L = I::kLanes;
  constexpr int N = kTileTokens / L;
  constexpr int kSums = kSumLanes / L;
  for (int v = 0; v < a.vectors; ++v) {
    float* const scores = a.scores + v * kTileTokens;
    F s[N];
    Unroll<N>([&]<int i>() FD_INLINE { s[i] = I::Load(scores + i * L); });
    if (a.soft_cap != 0) {
      Unroll<N>([&]<int i>() FD_INLINE { s[i] = SoftCap<I>(s[i], a.soft_cap); });
    }
    if (a.mask != ~0u) {
      Unroll<N>([&]<int i>() FD_INLINE { s[i] = I::Keep(s[i], a.mask >> (i * L), -__builtin_inff()); });
    }
    F top = s[0];
    Unroll<N - 1>([&]<int i>() FD_INLINE { top = I::Max(s[i + 1], top); });  // max: the second where the first is NaN
    F max = I::Set(a.max[v]);
    float* const sums = a.sums + v * kSumLanes;
    F sum[kSums];
    Unroll<kSums>([&]<int i>() FD_INLINE { sum[i] = I::Load(sums + i * L); });
    if (I::AnyGreater(top, max)) {
      const F grown = I::Set(I::ReduceMax(I::Max(top, max)));
      const F factor = I::Exp2(I::Sub(max, grown));
      Unroll<kSums>([&]<int i>() FD_INLINE { sum[i] = I::Mul(sum[i], factor); });
      float* const acc = a.acc + static_cast<int64_t>(v) * a.padded_dim;
      for (int d = 0; d < a.padded_dim; d += L) I::Store(acc + d, I::Mul(I::Load(acc + d), factor));
      max = grown;
      a.max[v] = I::First(grown);
    }
    Unroll<N>([&]<int i>() FD_INLINE {
      const F weight = I::Exp2(I::Sub(s[i], max));
      I::Store(scores + i * L, weight);
      sum[i % kSums] = I::Add(sum[i % kSums], weight);
    });
    Unroll<kSums>([&]<int i>() FD_INLINE { I::Store(sums + i * L, sum[i]); });
  }
}

template <class I>
void AddScaled(float* acc, const float* x, float factor, int32_t count) {
  const typename I::F f = I::Set(factor);
  for (int32_t i = 0; i < count; i += I::kLanes) {
    if (count - i >= I::kLanes) {
      I::Store(acc + i, I::Fma(f, I::Load(x + i), I::Load(acc + i)));
    } else {
      for (; i < count; ++i) acc[i] = __builtin_fmaf(factor, x[i], acc[i]);
    }
  }
}

template <class I>
void Exp2Array(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += I::kLanes) {
    alignas(64) float lanes[I::kLanes] = {};
    const int64_t rest = count - i < I::kLanes ? count - i : I::kLanes;
    for (int64_t j = 0; j < rest; ++j) lanes[j] = x[i + j];
    I::Store(lanes, I::Exp2(I::Load(lanes)));
    for (int64_t j = 0; j < rest; ++j) y[i + j] = lanes[j];
  }
}

}  // namespace
}  // namespace fastdecode::kernels
