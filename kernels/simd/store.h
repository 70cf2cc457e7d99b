// Rows in and out: what is stored in a tile, and the finished f16 rows.
//
// A key's elements go to as many lines of its tile, each of which the attention that follows
// reads anyway; a value's go side by side.
#pragma once

#include <cstring>

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/quantise.h"
#include "kernels/simd/keys.h"

namespace fastdecode::kernels {
namespace {

constexpr float kLargestF16 = 65504.0f;

// Nearest f16; finite values beyond its range become its largest, and are counted.
inline int NarrowF16(const float* row, int32_t count, uint16_t* out) {
  int beyond = 0;
  for (int32_t i = 0; i < count; i += 8) {
    alignas(32) float lanes[8];
    for (int j = 0; j < 8; ++j) {
      const float x = row[i + j];
      const bool clipped = std::fabs(x) > kLargestF16 && std::fabs(x) <= 3.4028234663852886e38f;
      beyond += clipped ? 1 : 0;
      lanes[j] = clipped ? std::copysign(kLargestF16, x) : x;
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_load_ps(lanes), _MM_FROUND_TO_NEAREST_INT));
  }
  return beyond;
}

inline int NarrowBf16(const float* row, int32_t count, uint16_t* out) {
  int beyond = 0;
  for (int32_t i = 0; i < count; ++i) out[i] = SaturatedBf16(row[i], beyond);
  return beyond;
}

using Narrow = int (*)(const float*, int32_t, uint16_t*);

inline int64_t WideKeyBytes(int32_t head_dim) { return int64_t{head_dim} * kTileTokens * 2; }
inline int64_t WideValueBytes(int32_t head_dim) { return int64_t{PaddedDim(head_dim)} * kTileTokens * 2; }

template <Narrow kNarrow>
int StoreWideKey(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  uint16_t narrow[kMaxHeadDim];
  const int beyond = kNarrow(row, head_dim, narrow);
  auto* to = reinterpret_cast<uint16_t*>(tile) + token;
  for (int32_t d = 0; d < head_dim; ++d) to[d * kTileTokens] = narrow[d];
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

template <Narrow kNarrow>
int StoreWideValue(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int beyond = 0;
  ForParts(head_dim, token, 2, [&](int32_t d, int32_t count, int64_t at) {
    beyond += kNarrow(row + d, count, reinterpret_cast<uint16_t*>(tile + at));
  });
  return beyond;
}

inline uint16_t* ScalesAt(std::byte* tile, int64_t payload) { return reinterpret_cast<uint16_t*>(tile + payload); }

inline int64_t Int8KeyBytes(int32_t head_dim) { return int64_t{head_dim} * kTileTokens + kTileTokens * 2; }
inline int64_t Int8ValueBytes(int32_t head_dim) { return int64_t{PaddedDim(head_dim)} * kTileTokens + kTileTokens * 2; }

inline int StoreInt8Key(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int8_t quants[kMaxHeadDim];
  ScalesAt(tile, int64_t{head_dim} * kTileTokens)[token] = QuantiseInt8(row, head_dim, quants);
  auto* to = reinterpret_cast<int8_t*>(tile) + token;
  for (int32_t d = 0; d < head_dim; ++d) to[d * kTileTokens] = quants[d];
  return 0;
}
inline int StoreInt8Value(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  int8_t quants[kMaxHeadDim];
  ScalesAt(tile, int64_t{PaddedDim(head_dim)} * kTileTokens)[token] = QuantiseInt8(row, head_dim, quants);
  ForParts(head_dim, token, 1, [&](int32_t d, int32_t count, int64_t at) {
    std::memcpy(tile + at, quants + d, static_cast<size_t>(count));
  });
  return 0;
}

inline int64_t Int4KeyBytes(int32_t head_dim) {
  return int64_t{head_dim} * kTileTokens / 2 + int64_t{Parts(head_dim)} * kTileTokens * 2;
}
inline int64_t Int4ValueBytes(int32_t head_dim) {
  return int64_t{PaddedDim(head_dim)} * kTileTokens / 2 + int64_t{Parts(head_dim)} * kTileTokens * 2;
}

// Quantises the parts of a row; scale of part p goes to scales[p * kTileTokens].
inline void QuantiseParts(const float* row, int32_t head_dim, int8_t* quants, uint16_t* scales) {
  for (int32_t d = 0; d < head_dim; d += kPartDims) {
    const int32_t count = head_dim - d < kPartDims ? head_dim - d : kPartDims;
    scales[d / kPartDims * kTileTokens] = QuantiseInt4(row + d, count, quants + d);
  }
}

inline int StoreInt4Key(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  const int32_t rows = head_dim / 8;
  int8_t quants[kMaxHeadDim];
  QuantiseParts(row, head_dim, quants, ScalesAt(tile, int64_t{rows} * kTileTokens * 4) + token);
  auto* const words = reinterpret_cast<uint32_t*>(tile) + token;
  for (int32_t r = 0; r < rows; ++r) {
    uint32_t word = 0;
    for (int32_t i = 0; i < 8; ++i) word |= (static_cast<uint32_t>(quants[8 * r + i]) & 15u) << (4 * i);
    words[r * kTileTokens] = word;
  }
  return 0;
}
inline int StoreInt4Value(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  const int32_t padded = PaddedDim(head_dim);
  int8_t quants[kMaxHeadDim] = {};
  QuantiseParts(row, head_dim, quants, ScalesAt(tile, int64_t{padded} * kTileTokens / 2) + token);
  for (int32_t d = 0; d < padded; d += 16) {
    const int32_t part = d / kPartDims * kPartDims;
    const int32_t vectors = padded - part < kPartDims ? 1 : 2;
    const int32_t entry = token * vectors + (d - part) / 16;
    const int shift = entry % 8 * 4;
    auto* const words = reinterpret_cast<uint32_t*>(tile + int64_t{part} * kTileTokens / 2) + entry / 8 * 16;
    for (int32_t i = 0; i < 16; ++i) {
      words[i] = (words[i] & ~(15u << shift)) | (static_cast<uint32_t>(quants[d + i]) & 15u) << shift;
    }
  }
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
