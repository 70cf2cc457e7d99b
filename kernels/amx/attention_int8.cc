// Scores of int8 keys with AMX: a tile of keys is multiplied as it lies in the cache.
//
// The arithmetic is that of simd/integer.h, to the last bit: the query in fixed point of 16 bits, sums exact.
// A multiplication takes bytes, so these 16 bits go as two matrices: the upper byte (signed) and the
// lower (unsigned); a sum is 256 * upper + lower. In a word the bytes of elements 0 .. 3 lie in the order
// 0, 2, 1, 3, in the query as in the cache. A step is 64 dimensions.
//
// Values are AVX-512's: weights have a scale a tile, so that sums of integers end with it, and a tile has half as many
// tokens as one multiplication sums over. With AMX they took as long (16 query vectors) or longer.
#include <cmath>
#include <cstring>

#include "kernels/amx/amx_ops.h"
#include "kernels/amx/tiles.h"
#include "kernels/avx512/vector_avx512.h"
#include "kernels/simd/integer.h"
#include "kernels/simd/prefetch.h"

namespace fastdecode::kernels {
namespace {

constexpr int kInt8 = static_cast<int>(KvFormat::kInt8);
constexpr int kOffset = Words<8>::kOffset;
constexpr int kByteDims = 64;  // that one multiplication sums over

constexpr int ByteSteps(int head_dim) { return (head_dim + kByteDims - 1) / kByteDims; }

// Upper and lower bytes of 32 numbers, in the order of words.
FD_INLINE inline void SplitShorts(const int16_t* shorts, std::byte* upper, std::byte* lower) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  const __m512i numbers = _mm512_loadu_si512(shorts);
  const auto store = [&](std::byte* to, __m512i bytes) FD_INLINE {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(bytes), order));
  };
  store(upper, _mm512_srli_epi16(numbers, 8));
  store(lower, numbers);
}

// The packed query, a pass after another: factors [16], starts [16], then A: [step][upper, lower][vectors of the
// pass][64 dimensions], zero where there is no dimension.
constexpr int kHeadBytes = 2 * kTileRows * 4;
constexpr int64_t PassBytes(int each, int head_dim) {
  return kHeadBytes + int64_t{ByteSteps(head_dim)} * 2 * each * kRowBytes;
}

int64_t PackedFloats(int32_t vectors, int32_t head_dim) {
  if (vectors < kMinDirectVectors) return kAvx512Kernel.keys[kInt8].packed_floats(vectors, head_dim);
  const int each = VectorsOfPass(vectors);
  return (vectors + each - 1) / each * PassBytes(each, head_dim) / int64_t{sizeof(float)};
}

void LoadQuery(const QueryArgs& a) {
  const int vectors = a.rows * a.group;
  if (vectors < kMinDirectVectors) return kAvx512Kernel.keys[kInt8].load_query(a);
  alignas(64) int16_t shorts[kMaxHeadDim];
  auto* to = reinterpret_cast<std::byte*>(a.packed);
  ForTilePasses(vectors, [&](int begin, int each, int) {
    for (int v = 0; v < each; ++v) {
      const int vector = begin + v;
      const uint16_t* const q = a.q + vector / a.group * a.row_stride + int64_t{vector % a.group} * a.head_dim;
      std::memset(shorts, 0, sizeof(shorts));
      const float factor = QuantiseQuery<Avx512>(q, a.head_dim, shorts) / kLargestShort * a.scale;
      int32_t sum = 0;
      for (int d = 0; d < a.head_dim; ++d) sum += shorts[d];
      const int32_t start = -kOffset * sum;
      std::memcpy(to + 4 * v, &factor, 4);
      std::memcpy(to + 4 * (kTileRows + v), &start, 4);
      for (int d = 0; d < ByteSteps(a.head_dim) * kByteDims; d += kTileTokens) {
        std::byte* const upper = to + kHeadBytes + (int64_t{d / kByteDims} * 2 * each + v) * kRowBytes + d % kByteDims;
        SplitShorts(shorts + d, upper, upper + each * kRowBytes);
      }
    }
    to += PassBytes(each, a.head_dim);
  });
}

// 16 lanes of a vector's sum.
FD_INLINE inline __m512 Total(int32_t start, const int32_t* upper, const int32_t* lower) {
  const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(upper), 8), _mm512_load_si512(lower));
  return _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_set1_epi32(start)));
}

void Scores(const ScoreArgs& a) {
  if (a.vectors < kMinDirectVectors) return kAvx512Kernel.keys[kInt8].scores(a);
  const int steps = ByteSteps(a.head_dim);
  const int left = a.head_dim - (steps - 1) * kByteDims;
  alignas(64) std::byte last[kBlock];  // in which the query is 0 beyond what is there
  if (left < kByteDims) {
    std::memcpy(last, a.tile + int64_t{steps - 1} * kBlock, static_cast<size_t>(left / 4) * kWordRow);
  }
  const uint16_t* const scales = Scales(a.tile, int64_t{a.head_dim} * kTileTokens);
  const __m512 scale[kHalves] = {Avx512::LoadBf16(scales), Avx512::LoadBf16(scales + 16)};
  const auto* packed = reinterpret_cast<const std::byte*>(a.packed);
  Prefetcher ahead(a.ahead, KeyTileBytes(KvFormat::kInt8, a.head_dim), 1);
  Sums<int32_t> sums;
  ForTilePasses(a.vectors, [&](int begin, int each, int) FD_INLINE {
    ZeroSums();
    StoresBefore();
    for (int s = 0; s < steps; ++s) {
      const std::byte* const query = packed + kHeadBytes + int64_t{s} * 2 * each * kRowBytes;
      const std::byte* const keys = s == steps - 1 && left < kByteDims ? last : a.tile + int64_t{s} * kBlock;
      _tile_loadd(4, query, kRowBytes);
      _tile_loadd(6, keys, kWordRow);
      _tile_dpbsud(0, 4, 6);
      _tile_loadd(5, query + each * kRowBytes, kRowBytes);
      _tile_dpbuud(1, 5, 6);
      _tile_loadd(7, keys + kRowBytes, kWordRow);
      _tile_dpbsud(2, 4, 7);
      _tile_dpbuud(3, 5, 7);
      if (begin == 0) ahead.Lines(kBlockLines);
    }
    StoreSums(sums);
    for (int v = 0; v < each; ++v) {
      float factor;
      int32_t start;
      std::memcpy(&factor, packed + 4 * v, 4);
      std::memcpy(&start, packed + 4 * (kTileRows + v), 4);
      for (int half = 0; half < kHalves; ++half) {
        const __m512 total = Total(start, sums.of[2 * half][v], sums.of[2 * half + 1][v]);
        _mm512_storeu_ps(a.scores + int64_t{begin + v} * kTileTokens + half * 16,
                         _mm512_mul_ps(total, _mm512_mul_ps(scale[half], _mm512_set1_ps(factor))));
      }
    }
    packed += PassBytes(each, a.head_dim);
  });
  ahead.Rest();
}

}  // namespace

constinit const AmxOps kAmxInt8Ops = {&PackedFloats, &LoadQuery, &Scores, nullptr};

}  // namespace fastdecode::kernels
