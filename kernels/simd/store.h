// Rows in and out: what is stored in a tile, and the finished f16 rows.
//
// A key's elements go to as many lines of its tile, each of which the attention that follows
// reads anyway; a value's go side by side.
#pragma once

#include <cstring>

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/quantise.h"

namespace fastdecode::kernels {
namespace {

constexpr float kLargestF16 = 65504.0f;

// Nearest f16; finite values beyond its range become its largest, and are counted.
inline int NarrowF16(const float* row, int32_t count, uint16_t* out) {
  int beyond = 0;
  for (int32_t i = 0; i < count; i += 8) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 x = _mm256_loadu_ps(row + i);
    const __m256 magnitude = _mm256_andnot_ps(sign, x);
    const __m256 clipped = _mm256_and_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(kLargestF16), _CMP_GT_OQ),
                                         _mm256_cmp_ps(magnitude, _mm256_set1_ps(kLargestFloat), _CMP_LE_OQ));
    beyond += __builtin_popcount(static_cast<uint32_t>(_mm256_movemask_ps(clipped)));
    const __m256 largest = _mm256_or_ps(_mm256_and_ps(x, sign), _mm256_set1_ps(kLargestF16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_blendv_ps(x, largest, clipped), _MM_FROUND_TO_NEAREST_INT));
  }
  return beyond;
}

inline int StoreF16Key(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  uint16_t narrow[kMaxHeadDim];
  const int beyond = NarrowF16(row, head_dim, narrow);
  auto* to = reinterpret_cast<uint16_t*>(tile) + token;
  for (int32_t d = 0; d < head_dim; ++d) to[d * kTileTokens] = narrow[d];
  return beyond;
}

// Words of two dimensions.
inline int StoreBf16Key(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int beyond = 0;
  auto* to = reinterpret_cast<uint16_t*>(tile) + 2 * token;
  for (int32_t d = 0; d < head_dim; ++d) to[d / 2 * 2 * kTileTokens + d % 2] = SaturatedBf16(row[d], beyond);
  return beyond;
}

// Calls visit(first element, elements, bytes from the tile's start to the token's) for each part.
template <class Visit>
FD_INLINE inline void ForParts(int32_t head_dim, int32_t token, int element_bytes, Visit visit) {
  const int32_t padded = PaddedDim(head_dim);
  for (int32_t d = 0; d < padded; d += kPartDims) {
    const int32_t width = padded - d < kPartDims ? padded - d : kPartDims;
    visit(d, head_dim - d < width ? head_dim - d : width, (int64_t{d} * kTileTokens + token * width) * element_bytes);
  }
}

inline int StoreF16Value(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int beyond = 0;
  ForParts(head_dim, token, 2, [&](int32_t d, int32_t count, int64_t at) {
    beyond += NarrowF16(row + d, count, reinterpret_cast<uint16_t*>(tile + at));
  });
  return beyond;
}

// Words of two tokens.
inline int StoreBf16Value(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int beyond = 0;
  ForParts(head_dim, token & ~1, 2, [&](int32_t d, int32_t count, int64_t at) {
    auto* const to = reinterpret_cast<uint16_t*>(tile + at) + token % 2;
    for (int32_t i = 0; i < count; ++i) to[2 * i] = SaturatedBf16(row[d + i], beyond);
  });
  return beyond;
}

// The first of the row's elements of largest magnitude; NaN if one is not finite.
inline float Extreme(const float* row, int32_t count) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256i top = _mm256_setzero_si256();
  for (int32_t i = 0; i < count; i += 8) {  // bits of NaN and infinity are above all others'
    top = _mm256_max_epi32(top, _mm256_castps_si256(_mm256_and_ps(_mm256_loadu_ps(row + i), magnitude)));
  }
  top = _mm256_max_epi32(top, _mm256_permute2x128_si256(top, top, 0x01));
  top = _mm256_max_epi32(top, _mm256_shuffle_epi32(top, 0x4e));
  const __m256 largest = _mm256_castsi256_ps(_mm256_max_epi32(top, _mm256_shuffle_epi32(top, 0xb1)));
  if (!(_mm256_cvtss_f32(largest) <= kLargestFloat)) return __builtin_nanf("");
  for (int32_t i = 0;; i += 8) {
    const __m256 is_it = _mm256_cmp_ps(_mm256_and_ps(_mm256_loadu_ps(row + i), magnitude), largest, _CMP_EQ_OQ);
    const auto found = static_cast<uint32_t>(_mm256_movemask_ps(is_it));
    if (found != 0) return row[i + __builtin_ctz(found)];
  }
}

// quantise.h's arithmetic, 8 elements at once: elements of a group that share a scale, each plus the offset.
template <int kBits>
uint16_t QuantiseGroup(const float* row, int32_t count, uint8_t* elements) {
  const QuantisedScale scale = kBits == 8 ? ScaleOfInt8(Extreme(row, count)) : ScaleOfInt4(Extreme(row, count));
  const __m256 inverse = _mm256_set1_ps(scale.inverse);
  const __m256i offset = _mm256_set1_epi32(1 << (kBits - 1));
  for (int32_t i = 0; i < count; i += 8) {
    const __m256 x = scale.inverse == 0 ? _mm256_setzero_ps() : _mm256_mul_ps(_mm256_loadu_ps(row + i), inverse);
    const __m256 half = _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(0.5f));
    const __m256i quants = _mm256_add_epi32(_mm256_cvttps_epi32(_mm256_add_ps(x, half)), offset);
    const __m256i bounded = _mm256_min_epi32(quants, _mm256_set1_epi32((1 << kBits) - 1));
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(bounded), _mm256_extracti128_si256(bounded, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(elements + i), _mm_packus_epi16(shorts, shorts));
  }
  return scale.stored;
}

// Scale of group g goes to scales[g * kTileTokens].
template <int kBits>
void QuantiseRow(const float* row, int32_t head_dim, uint8_t* elements, std::byte* scales) {
  const int32_t width = kBits == 8 ? head_dim : kPartDims;
  for (int32_t d = 0; d < head_dim; d += width) {
    const uint16_t scale = QuantiseGroup<kBits>(row + d, head_dim - d < width ? head_dim - d : width, elements + d);
    std::memcpy(scales + int64_t{d / width} * kTileTokens * 2, &scale, 2);
  }
}

// Where element e of a word is: even ones in its lower half.
template <int kBits>
constexpr int ShiftInWord(int e) {
  return e % 2 * 16 + e / 2 * kBits;
}

template <int kBits>
int StoreIntegerKey(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  constexpr int kElements = 32 / kBits;
  uint8_t elements[kMaxHeadDim];
  QuantiseRow<kBits>(row, head_dim, elements, tile + int64_t{head_dim} * kTileTokens * kBits / 8 + token * 2);
  for (int32_t d = 0; d < head_dim; d += kElements) {
    uint32_t word = 0;
    for (int e = 0; e < kElements; ++e) word |= uint32_t{elements[d + e]} << ShiftInWord<kBits>(e);
    std::memcpy(tile + (int64_t{d / kElements} * kTileTokens + token) * 4, &word, 4);
  }
  return 0;
}

template <int kBits>
int StoreIntegerValue(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  constexpr int kElements = 32 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  uint8_t elements[kMaxHeadDim];
  QuantiseRow<kBits>(row, head_dim, elements,
                     tile + int64_t{PaddedDim(head_dim)} * kTileTokens * kBits / 8 + token * 2);
  const int shift = ShiftInWord<kBits>(token % kElements);
  ForParts(head_dim, 0, 1, [&](int32_t d, int32_t count, int64_t at) {
    const int32_t width = PaddedDim(head_dim) - d < kPartDims ? PaddedDim(head_dim) - d : kPartDims;
    std::byte* const words = tile + at * kBits / 8 + int64_t{token / kElements} * width * 4;
    for (int32_t i = 0; i < count; ++i) {
      uint32_t word;
      std::memcpy(&word, words + 4 * i, 4);
      word = (word & ~(kMask << shift)) | uint32_t{elements[d + i]} << shift;
      std::memcpy(words + 4 * i, &word, 4);
    }
  });
  return 0;
}

// out [head_dim] f16 = acc / divisor
inline void StoreRow(const float* acc, float divisor, int32_t head_dim, uint16_t* out) {
  const __m256 d = _mm256_set1_ps(divisor);
  for (int32_t i = 0; i < head_dim; i += 8) {
    const __m256 row = _mm256_div_ps(_mm256_loadu_ps(acc + i), d);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(row, _MM_FROUND_TO_NEAREST_INT));
  }
}

}  // namespace
}  // namespace fastdecode::kernels
