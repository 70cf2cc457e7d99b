// 16 lanes of f32 with AVX-512 (F, VL, DQ, BW, VNNI), as kernels/simd wants them.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "kernels/simd/softmax.h"

namespace fastdecode::kernels {
namespace {

struct Avx512 {
  using F = __m512;
  using W = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kMaxVectors = 8;  // query vectors of a pass
  static constexpr int kMaxSums = 16;    // of 32 registers

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  static F Abs(F x) { return _mm512_abs_ps(x); }
  static F CopySign(F magnitude, F sign) { return _mm512_or_ps(magnitude, _mm512_and_ps(Set(-0.0f), sign)); }
  static bool AnyGreater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static float First(F x) { return _mm512_cvtss_f32(x); }
  static float ReduceMax(F x) { return _mm512_reduce_max_ps(x); }
  // Lanes whose bit of `mask` is 0 become `other`.
  static F Keep(F x, uint32_t mask, float other) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), Set(other), x);
  }

  static F LoadF16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F LoadBf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  // The halves of each word.
  static F LowerBf16(W words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
  static F UpperBf16(W words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static W ZeroWords() { return _mm512_setzero_si512(); }
  static W SetWords(int32_t x) { return _mm512_set1_epi32(x); }
  static W BroadcastWord(const void* p) { return _mm512_castps_si512(Broadcast(static_cast<const float*>(p))); }
  static W LoadWords(const void* p) { return _mm512_loadu_si512(p); }
  static W AddWords(W a, W b) { return _mm512_add_epi32(a, b); }
  // Field k of kBits bits of both halves of each word.
  template <int kBits, int k>
  static W Field(W words) {
    const W shifted = k == 0 ? words : _mm512_srli_epi16(words, k * kBits);
    return (k + 1) * kBits == 16 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16((1 << kBits) - 1));
  }
  // sum + the products of a's and b's halves.
  static W Dot(W sum, W a, W b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static F OfWords(W x) { return _mm512_cvtepi32_ps(x); }
  static W Rounded(F x) { return _mm512_cvtps_epi32(x); }
  static void StoreShorts(int16_t* p, W x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(x));
  }
  static int32_t ReduceAdd(W x) { return _mm512_reduce_add_epi32(x); }
  // The larger of bits that are those of no negative number: NaN is the largest.
  static F MaxBits(F a, F b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static float ReduceMaxBits(F x) { return std::bit_cast<float>(_mm512_reduce_max_epi32(_mm512_castps_si512(x))); }
  static void StoreF16(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  static F Exp2(F x) {
    const __mmask16 counts = _mm512_cmp_ps_mask(x, Set(-126.0f), _CMP_NLT_UQ);  // NaN does
    const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F p = Exp2Fraction<Avx512>(_mm512_maskz_sub_ps(counts, x, n));
    return _mm512_maskz_scalef_ps(counts, p, n);
  }
};

}  // namespace
}  // namespace fastdecode::kernels
