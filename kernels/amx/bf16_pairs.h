// Products of bf16 matrices of nearly f32's accuracy: what f16 and bf16 keys and values have in common.
//
//   scores   A: for each query vector hi and lo, two bf16 of which an f16 is the exact sum
//            (unscaled, so exact). All products are summed in f32, then scaled.
//   values   A: weights as hi + lo, which has 16 bits.
#pragma once

#include <bit>

#include "kernels/amx/tiles.h"
#include "kernels/attention_kernel.h"

namespace fastdecode::kernels {
namespace {

constexpr int kStepDims = 32;  // that one multiplication sums over
constexpr int kStepPairs = kStepDims / 2;

constexpr int Steps(int head_dim) { return (head_dim + kStepDims - 1) / kStepDims; }

// bf16 by truncation.
FD_INLINE inline __m512 Upper(__m512 x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// A step's elements of a query vector, as many as there are: hi and lo, exactly.
inline void SplitRow(const uint16_t* q, int left, uint16_t* hi, uint16_t* lo) {
  const auto part = [&](int from) {
    const int count = left - from < 0 ? 0 : left - from < 16 ? left - from : 16;
    const auto present = static_cast<__mmask16>((1u << count) - 1);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(present, q + from));
  };
  const __m512 first = part(0);
  const __m512 second = part(16);
  const __m512 first_hi = Upper(first);
  const __m512 second_hi = Upper(second);
  _mm512_storeu_si512(hi, std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(second_hi, first_hi)));
  const __m512bh rest = _mm512_cvtne2ps_pbh(_mm512_sub_ps(second, second_hi), _mm512_sub_ps(first, first_hi));
  _mm512_storeu_si512(lo, std::bit_cast<__m512i>(rest));
}

// A: [pass][step][hi, lo][vectors of the pass][32 dimensions], zero where there is no dimension;
// before it the scale.
constexpr int kScaleFloats = 16;
inline int64_t PackedPairsFloats(int32_t vectors, int32_t head_dim) {
  const int each = VectorsOfPass(vectors);
  const int64_t rows = int64_t{(vectors + each - 1) / each} * Steps(head_dim) * 2 * each;
  return kScaleFloats + rows * kRowBytes / int64_t{sizeof(float)};
}

inline void PackPairs(const QueryArgs& a) {
  a.packed[0] = a.scale;
  auto* to = reinterpret_cast<uint16_t*>(a.packed + kScaleFloats);
  ForTilePasses(a.rows * a.group, [&](int begin, int each, int) {
    for (int v = 0; v < each; ++v) {
      const int vector = begin + v;
      const uint16_t* const q = a.q + vector / a.group * a.row_stride + int64_t{vector % a.group} * a.head_dim;
      for (int d = 0; d < a.head_dim; d += kStepDims) {
        uint16_t* const at = to + (d * 2 * each + v * kStepDims);
        SplitRow(q + d, a.head_dim - d, at, at + each * kStepDims);
      }
    }
    to += Steps(a.head_dim) * 2 * each * kStepDims;
  });
}

// Sums 0, 1 are of half 0, hi and lo of the query apart, so that fewer wait for each other; 2, 3 of half 1.
inline void AddPairs(const Sums& sums, float scale, int each, float* scores) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int v = 0; v < each; ++v) {
    for (int half = 0; half < kHalves; ++half) {
      const __m512 sum = _mm512_add_ps(_mm512_load_ps(sums.of[2 * half][v]), _mm512_load_ps(sums.of[2 * half + 1][v]));
      _mm512_storeu_ps(scores + v * kTileTokens + half * 16, _mm512_mul_ps(sum, factor));
    }
  }
}

// A of the values: weights [vectors][32 tokens].
struct alignas(64) WeightPairs {
  __m512bh hi[kTileRows];
  __m512bh lo[kTileRows];
};

// The first `had` vectors get no weight.
inline void SplitWeights(const float* weights, int each, int had, WeightPairs& split) {
  for (int v = 0; v < each; ++v) {
    const __mmask16 kept = v < had ? 0 : 0xffff;
    const __m512 first = _mm512_maskz_loadu_ps(kept, weights + v * kTileTokens);
    const __m512 second = _mm512_maskz_loadu_ps(kept, weights + v * kTileTokens + 16);
    const __m512 first_hi = Upper(first);
    const __m512 second_hi = Upper(second);
    split.hi[v] = _mm512_cvtne2ps_pbh(second_hi, first_hi);  // exact
    split.lo[v] = _mm512_cvtne2ps_pbh(_mm512_sub_ps(second, second_hi), _mm512_sub_ps(first, first_hi));
  }
}

// Tiles 4 (hi) and 5 (lo).
FD_INLINE inline void LoadWeights(const WeightPairs& split) {
  StoresBefore();
  _tile_loadd(4, split.hi, kRowBytes);
  _tile_loadd(5, split.lo, kRowBytes);
}

}  // namespace
}  // namespace fastdecode::kernels
