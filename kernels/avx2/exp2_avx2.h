// 2^x for 8 floats.
//
// x = n + f, f in [-0.5, 0.5]; 2^f by a polynomial of degree 6 that is exact at 0
// (Chebyshev fit, relative error 9e-9), times 2^n. With the rounding of f32
// arithmetic the relative error stays below 2e-7 for -126 <= x <= 0, which a test
// checks; below -126 the result is 0, as in flush-to-zero. NaN gives NaN.
#pragma once

#include <immintrin.h>

namespace fastdecode::kernels {
namespace {

// For x <= 0.
inline __m256 Exp2(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-126.0f);
  const __m256 vanishes = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
  const __m256 bounded = _mm256_max_ps(lowest, x);  // the second operand, where it is NaN
  const __m256 n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 f = _mm256_sub_ps(bounded, n);
  __m256 p = _mm256_set1_ps(0.00015461448f);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0013390867f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.009618057f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.05550357f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.2402265f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931472f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  return _mm256_andnot_ps(vanishes, _mm256_mul_ps(p, power));
}

}  // namespace
}  // namespace fastdecode::kernels
