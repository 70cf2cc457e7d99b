// Joins partial results with AVX2, in the order of the ranges.
#include <immintrin.h>

#include "kernels/avx2/exp2_avx2.h"
#include "kernels/avx2/f16_avx2.h"
#include "kernels/decode_attention.h"

namespace fastdecode::kernels {

void MergeF16Avx2(const MergeParams& p) {
  for (int64_t head = p.head_begin; head < p.head_end; ++head) {
    __m256 max = _mm256_set1_ps(kLowest);
    for (int64_t r = 0; r < p.num_ranges; ++r) {
      max = _mm256_max_ps(_mm256_broadcast_ss(p.partial_max + r * p.num_heads + head), max);
    }
    __m256 sum = _mm256_setzero_ps();
    alignas(32) float acc[kMaxHeadDim] = {};
    for (int64_t r = 0; r < p.num_ranges; ++r) {
      const int64_t index = r * p.num_heads + head;
      const __m256 factor = Exp2(_mm256_sub_ps(_mm256_broadcast_ss(p.partial_max + index), max));
      sum = _mm256_fmadd_ps(factor, _mm256_broadcast_ss(p.partial_sum + index), sum);
      const float* const partial = p.partial_acc + index * p.head_dim;
      for (int d = 0; d < p.head_dim; d += kLanes) {
        _mm256_store_ps(acc + d, _mm256_fmadd_ps(factor, _mm256_loadu_ps(partial + d), _mm256_load_ps(acc + d)));
      }
    }
    StoreRow(acc, _mm256_cvtss_f32(sum), p.head_dim, p.out + head * p.head_dim);
  }
}

void Exp2F16Avx2(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    float lanes[kLanes] = {};
    const int64_t rest = count - i < kLanes ? count - i : kLanes;
    for (int64_t j = 0; j < rest; ++j) lanes[j] = x[i + j];
    _mm256_storeu_ps(lanes, Exp2(_mm256_loadu_ps(lanes)));
    for (int64_t j = 0; j < rest; ++j) y[i + j] = lanes[j];
  }
}

}  // namespace fastdecode::kernels
