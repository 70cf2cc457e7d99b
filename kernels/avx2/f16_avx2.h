// Rows of f16 in memory, 8 lanes of f32 in registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace fastdecode::kernels {
namespace {

constexpr int kLanes = 8;
constexpr float kLowest = -3.4028234663852886e38f;  // where a maximum starts; finite, so that differences are

inline __m256 LoadF16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// out [dim] f16 = acc [dim] / sum
inline void StoreRow(const float* acc, float sum, int dim, uint16_t* out) {
  const __m256 divisor = _mm256_set1_ps(sum);
  for (int d = 0; d < dim; d += kLanes) {
    const __m256 row = _mm256_div_ps(_mm256_loadu_ps(acc + d), divisor);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + d), _mm256_cvtps_ph(row, _MM_FROUND_TO_NEAREST_INT));
  }
}

}  // namespace
}  // namespace fastdecode::kernels
