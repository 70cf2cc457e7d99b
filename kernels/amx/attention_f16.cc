// Decode attention over f16 with AMX, for many query vectors: from nine on it is faster than AVX-512
// (docs/performance.md). Its tiles multiply bf16, and an f16 is the exact sum of two, hi and lo.
//   scores   B: keys, hi and lo, dimensions in pairs as the instruction wants them.
//   values   B: values, tokens in pairs. The product lo * lo is left out: at most 2^-14 of a
//            term, since both are cut off rather than rounded.
// Keys and values are split once for all query vectors, into a buffer in the first-level cache.
#include <cstring>

#include "kernels/amx/amx_ops.h"
#include "kernels/amx/bf16_pairs.h"
#include "kernels/avx512/vector_avx512.h"
#include "kernels/simd/prefetch.h"

namespace fastdecode::kernels {
namespace {

constexpr int kF16 = static_cast<int>(KvFormat::kF16);

// The upper halves of a (even places) and b (odd places): bf16 by truncation, in pairs.
inline __m512i PairUpper(__m512 a, __m512 b) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
  // low | (b & 0xffff0000)
  return _mm512_ternarylogic_epi32(low, _mm512_castps_si512(b), _mm512_set1_epi32(static_cast<int>(0xffff0000u)), 0xf8);
}
// hi and lo of a and b, which are of f16's precision.
inline void SplitPair(__m512 a, __m512 b, std::byte* hi, std::byte* lo) {
  _mm512_store_si512(hi, PairUpper(a, b));
  _mm512_store_si512(lo, PairUpper(_mm512_sub_ps(a, Upper(a)), _mm512_sub_ps(b, Upper(b))));
}

int64_t PackedQueryFloats(int32_t vectors, int32_t head_dim) {
  if (vectors < kMinSplitVectors) return kAvx512Kernel.keys[kF16].packed_floats(vectors, head_dim);
  return PackedPairsFloats(vectors, head_dim);
}

void PackQuery(const QueryArgs& a) {
  if (a.rows * a.group < kMinSplitVectors) return kAvx512Kernel.keys[kF16].load_query(a);
  PackPairs(a);
}

// B for 16 lanes (tokens of keys, elements of values): rows of pairs.
struct alignas(64) SplitTile {
  std::byte hi[kStepPairs][kRowBytes];
  std::byte lo[kStepPairs][kRowBytes];
};

// A step of the keys: 32 dimensions, or as many as there are. Calls between<0>() .. between<3>()
// on the way, for the multiplications of the step before: tiles and vectors have units of their
// own, which both are busy only when the instructions come mixed.
template <class Between>
FD_INLINE inline void SplitKeys(const std::byte* rows, int dims, SplitTile* halves, Prefetcher& ahead,
                                Between between) {
  constexpr int kKeyRow = kTileTokens * 2;
  const auto split = [&](int p) FD_INLINE {
    const std::byte* const row = rows + 2 * p * kKeyRow;
    if (p % 2 == 0) ahead.Quad();
    for (int half = 0; half < kHalves; ++half) {
      SplitPair(Avx512::LoadF16(row + 32 * half), Avx512::LoadF16(row + kKeyRow + 32 * half), halves[half].hi[p],
                halves[half].lo[p]);
    }
  };
  if (dims == kStepDims) {
    Unroll<4>([&]<int i>() FD_INLINE {
      Unroll<4>([&]<int p>() FD_INLINE { split(4 * i + p); });
      between.template operator()<i>();
    });
    return;
  }
  for (int p = 0; p < dims / 2; ++p) split(p);
  Unroll<4>([&]<int i>() FD_INLINE { between.template operator()<i>(); });
  for (int half = 0; half < kHalves && dims < kStepDims; ++half) {
    std::memset(halves[half].hi[dims / 2], 0, static_cast<size_t>((kStepDims - dims) / 2) * kRowBytes);
    std::memset(halves[half].lo[dims / 2], 0, static_cast<size_t>((kStepDims - dims) / 2) * kRowBytes);
  }
}

// Sums 0, 1 (half 0) and 2, 3 (half 1) += one step of the query (hi rows, then lo rows) times
// keys; hi and lo of the query have sums of their own, so that fewer wait for each other.
template <int kQuarter>
FD_INLINE inline void MultiplyQuarter(const std::byte* query, int each, const SplitTile* halves) {
  StoresBefore();
  if constexpr (kQuarter == 0) {
    _tile_loadd(4, query, kRowBytes);
    _tile_loadd(6, halves[0].hi, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, query + each * kRowBytes, kRowBytes);
    _tile_dpbf16ps(1, 5, 6);
  } else if constexpr (kQuarter == 1) {
    _tile_loadd(7, halves[1].hi, kRowBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  } else if constexpr (kQuarter == 2) {
    _tile_loadd(6, halves[0].lo, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
  } else {
    _tile_loadd(7, halves[1].lo, kRowBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
}

FD_INLINE inline void MultiplyStep(const std::byte* query, int each, const SplitTile* halves) {
  Unroll<4>([&]<int i>() FD_INLINE { MultiplyQuarter<i>(query, each, halves); });
}

void TileScores(const ScoreArgs& a) {
  if (a.vectors < kMinSplitVectors) return kAvx512Kernel.keys[kF16].scores(a);
  SplitTile keys[kMaxHeadDim / kStepDims][kHalves];
  const int steps = Steps(a.head_dim);
  const auto* query = reinterpret_cast<const std::byte*>(a.packed + kScaleFloats);
  Prefetcher ahead(a.ahead, int64_t{a.head_dim} * kTileTokens * 2, 1);
  ForTilePasses(a.vectors, [&](int begin, int each, int) FD_INLINE {
    const int64_t step_bytes = int64_t{2} * each * kRowBytes;
    ZeroSums();
    // A step is multiplied while the next one is split: what was just stored can't be loaded as a tile at once.
    for (int s = 0; s < steps && begin == 0; ++s) {
      const int left = a.head_dim - s * kStepDims;
      SplitKeys(a.tile + int64_t{s} * kStepDims * kTileTokens * 2, left < kStepDims ? left : kStepDims, keys[s], ahead,
                [&]<int i>() FD_INLINE {
                  if (s > 0) MultiplyQuarter<i>(query + (s - 1) * step_bytes, each, keys[s - 1]);
                });
    }
    for (int s = begin == 0 ? steps - 1 : 0; s < steps; ++s) MultiplyStep(query + s * step_bytes, each, keys[s]);
    Sums sums;
    StoreSums(sums);
    AddPairs(sums, a.packed[0], each, a.scores + int64_t{begin} * kTileTokens);
    query += steps * step_bytes;
  });
}

// A part of the values: up to two vectors of 16 elements. Rows of tokens that don't exist hold anything.
template <int kVectors>
void SplitValues(const std::byte* rows, int tokens, SplitTile* columns, Prefetcher& ahead) {
  constexpr int kValueRow = kVectors * 32;
  for (int t = 0; t < kTileTokens; t += 2) {
    const std::byte* const row = rows + t * kValueRow;
    if (t % (8 / kVectors) == 0) ahead.Quad();
    for (int v = 0; v < kVectors; ++v) {
      const __m512 first = t < tokens ? Avx512::LoadF16(row + 32 * v) : _mm512_setzero_ps();
      const __m512 second = t + 1 < tokens ? Avx512::LoadF16(row + kValueRow + 32 * v) : _mm512_setzero_ps();
      SplitPair(first, second, columns[v].hi[t / 2], columns[v].lo[t / 2]);
    }
  }
}

// acc += A (tiles 4, 5) times a part; `stride` bytes from one vector's sums to the next's.
template <int kVectors>
FD_INLINE inline void MultiplyPart(const SplitTile* columns, float* acc, int64_t stride) {
  StoresBefore();
  _tile_loadd(0, acc, stride);
  _tile_loadd(6, columns[0].hi, kRowBytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kVectors == 2) {
    _tile_loadd(1, acc + 16, stride);
    _tile_loadd(7, columns[1].hi, kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_dpbf16ps(0, 5, 6);
  if constexpr (kVectors == 2) _tile_dpbf16ps(1, 5, 7);
  _tile_loadd(6, columns[0].lo, kRowBytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kVectors == 2) {
    _tile_loadd(7, columns[1].lo, kRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stored(1, acc + 16, stride);
  }
  _tile_stored(0, acc, stride);
}

void TileValues(const ValueArgs& a) {
  if (a.vectors < kMinSplitVectors) return kAvx512Kernel.values[kF16].add(a);
  SplitTile values[kMaxHeadDim / kPartDims][kHalves];
  const int padded_dim = PaddedDim(a.head_dim);
  const int64_t stride = int64_t{padded_dim} * 4;
  const int parts = Parts(a.head_dim);
  WeightPairs weights;
  Prefetcher ahead(a.ahead, stride / 2 * kTileTokens, 1);
  ForTilePasses(a.vectors, [&](int begin, int each, int had) FD_INLINE {
    SplitWeights(a.weights + int64_t{begin} * kTileTokens, each, had, weights);
    LoadWeights(weights);
    float* const acc = a.acc + int64_t{begin} * padded_dim;
    for (int p = 0; p <= parts; ++p) {
      if (p < parts && begin == 0) {
        const std::byte* const rows = a.tile + int64_t{p} * kPartDims * kTileTokens * 2;
        if (padded_dim - p * kPartDims >= kPartDims) {
          SplitValues<2>(rows, a.tokens, values[p], ahead);
        } else {
          SplitValues<1>(rows, a.tokens, values[p], ahead);
        }
      }
      if (p == 0) continue;
      if (padded_dim - (p - 1) * kPartDims >= kPartDims) {
        MultiplyPart<2>(values[p - 1], acc + (p - 1) * kPartDims, stride);
      } else {
        MultiplyPart<1>(values[p - 1], acc + (p - 1) * kPartDims, stride);
      }
    }
  });
}

}  // namespace

constinit const AmxOps kAmxF16Ops = {&PackedQueryFloats, &PackQuery, &TileScores, &TileValues};

}  // namespace fastdecode::kernels
