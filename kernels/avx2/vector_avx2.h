// 8 lanes of f32 with AVX2, FMA and F16C, as kernels/simd wants them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd/softmax.h"

namespace fastdecode::kernels {
namespace {

struct Avx2 {
  using F = __m256;
  using W = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kMaxVectors = 6;  // query vectors of a pass
  static constexpr int kMaxSums = 12;    // of 16 registers

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
  static F Abs(F x) { return _mm256_andnot_ps(Set(-0.0f), x); }
  static F CopySign(F magnitude, F sign) { return _mm256_or_ps(magnitude, _mm256_and_ps(Set(-0.0f), sign)); }
  static bool AnyGreater(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  static float First(F x) { return _mm256_cvtss_f32(x); }
  static float ReduceMax(F x) {
    x = _mm256_max_ps(x, _mm256_permute2f128_ps(x, x, 0x01));
    x = _mm256_max_ps(x, _mm256_shuffle_ps(x, x, 0x4e));
    return First(_mm256_max_ps(x, _mm256_shuffle_ps(x, x, 0xb1)));
  }
  // Lanes whose bit of `mask` is 0 become `other`.
  static F Keep(F x, uint32_t mask, float other) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i kept = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits);
    return _mm256_blendv_ps(Set(other), x, _mm256_castsi256_ps(kept));
  }

  static F LoadF16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static F LoadBf16(const void* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // The halves of each word.
  static F LowerBf16(W words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
  static F UpperBf16(W words) {
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static W ZeroWords() { return _mm256_setzero_si256(); }
  static W SetWords(int32_t x) { return _mm256_set1_epi32(x); }
  static W BroadcastWord(const void* p) { return _mm256_castps_si256(Broadcast(static_cast<const float*>(p))); }
  static W LoadWords(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static W AddWords(W a, W b) { return _mm256_add_epi32(a, b); }
  // Field k of kBits bits of both halves of each word.
  template <int kBits, int k>
  static W Field(W words) {
    const W shifted = k == 0 ? words : _mm256_srli_epi16(words, k * kBits);
    return (k + 1) * kBits == 16 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16((1 << kBits) - 1));
  }
  // sum + the products of a's and b's halves.
  static W Dot(W sum, W a, W b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
  static F OfWords(W x) { return _mm256_cvtepi32_ps(x); }
  static W Rounded(F x) { return _mm256_cvtps_epi32(x); }
  static void StoreShorts(int16_t* p, W x) {
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), shorts);
  }
  static int32_t ReduceAdd(W x) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i two = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  // The larger of bits that are those of no negative number: NaN is the largest.
  static F MaxBits(F a, F b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static float ReduceMaxBits(F x) {
    x = MaxBits(x, _mm256_permute2f128_ps(x, x, 0x01));
    x = MaxBits(x, _mm256_shuffle_ps(x, x, 0x4e));
    return First(MaxBits(x, _mm256_shuffle_ps(x, x, 0xb1)));
  }
  static void StoreF16(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static F Exp2(F x) {
    const F lowest = Set(-126.0f);
    const F vanishes = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
    const F bounded = _mm256_max_ps(lowest, x);  // the second operand, where it is NaN
    const F n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F p = Exp2Fraction<Avx2>(Sub(bounded, n));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_andnot_ps(vanishes, Mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))));
  }
};

}  // namespace
}  // namespace fastdecode::kernels
