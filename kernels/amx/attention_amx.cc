// Decode attention with AMX: products of bf16 matrices on tiles, for many query vectors.
//
// One multiplication of tiles does what hundreds of vector instructions would, so from
// sixteen query vectors on it is faster than AVX-512 (docs/performance.md). Nearly f32's
// accuracy out of bf16 inputs: an f16 is the exact sum of two bf16, hi and lo.
//   scores   rows of A: for each query vector hi and lo (unscaled, so exact); B: keys, hi
//            and lo, dimensions in pairs as the instruction wants them. All four products
//            are summed in f32, then scaled.
//   values   A: weights as hi + lo; B: values, tokens in pairs. The product lo * lo is left
//            out: at most 2^-14 of a term, since both are cut off rather than rounded.
// Keys and values are split once for all query vectors, into a buffer in the first-level
// cache. Below kMinVectors, and for the formats that are not listed here, AVX-512 does it.
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "kernels/amx/amx_ops.h"
#include "kernels/avx512/vector_avx512.h"
#include "kernels/simd/passes.h"

namespace fastdecode::kernels {

namespace {

constexpr int kF16 = static_cast<int>(KvFormat::kF16);
constexpr int kMinVectors = 8;
constexpr int kTileRows = 16;  // query vectors of a pass, at most
constexpr int kRowBytes = 64;
constexpr int kStepDims = 32;  // that one multiplication sums over
constexpr int kStepPairs = kStepDims / 2;
constexpr int kHalves = 2;  // of a tile's tokens, 16 each

// GCC's tile loads do not say that they read memory: what was stored must be in it by then.
FD_INLINE inline void StoresBefore() { __asm__ volatile("" ::: "memory"); }

constexpr int Steps(int head_dim) { return (head_dim + kStepDims - 1) / kStepDims; }

// Query vectors of a pass. The last pass starts early enough to have as many.
constexpr int VectorsOfPass(int vectors) {
  const int passes = Passes(vectors, kTileRows);
  return (vectors + passes - 1) / passes;
}

// Tiles 0 .. 3: sums; 4, 5: A; these have a row for each query vector. 6, 7: B. Setting this
// up costs as much as a quarter of a tile's work, hence once a call.
void Enter(int32_t vectors) {
  if (vectors < kMinVectors) return;
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kRowBytes;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? VectorsOfPass(vectors) : kTileRows);
  }
  StoresBefore();
  _tile_loadconfig(&config);
}

void Leave(int32_t vectors) {
  if (vectors >= kMinVectors) _tile_release();
}

// The upper halves of a (even places) and b (odd places): bf16 by truncation, in pairs.
inline __m512i PairUpper(__m512 a, __m512 b) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
  // low | (b & 0xffff0000)
  return _mm512_ternarylogic_epi32(low, _mm512_castps_si512(b), _mm512_set1_epi32(static_cast<int>(0xffff0000u)), 0xf8);
}
inline __m512 Upper(__m512 x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
// hi and lo of a and b, which are of f16's precision.
inline void SplitPair(__m512 a, __m512 b, std::byte* hi, std::byte* lo) {
  _mm512_store_si512(hi, PairUpper(a, b));
  _mm512_store_si512(lo, PairUpper(_mm512_sub_ps(a, Upper(a)), _mm512_sub_ps(b, Upper(b))));
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
int64_t PackedQueryFloats(int32_t vectors, int32_t head_dim) {
  if (vectors < kMinVectors) return kAvx512Kernel.keys[kF16].packed_floats(vectors, head_dim);
  const int64_t rows = int64_t{Passes(vectors, kTileRows)} * Steps(head_dim) * 2 * VectorsOfPass(vectors);
  return kScaleFloats + rows * kRowBytes / int64_t{sizeof(float)};
}

void PackQuery(const QueryArgs& a) {
  const int vectors = a.rows * a.group;
  if (vectors < kMinVectors) return kAvx512Kernel.keys[kF16].load_query(a);
  const int each = VectorsOfPass(vectors);
  a.packed[0] = a.scale;
  auto* to = reinterpret_cast<uint16_t*>(a.packed + kScaleFloats);
  for (int done = 0; done < vectors; done += each) {
    const int begin = done + each <= vectors ? done : vectors - each;
    for (int v = 0; v < each; ++v) {
      const int vector = begin + v;
      const uint16_t* const q = a.q + vector / a.group * a.row_stride + int64_t{vector % a.group} * a.head_dim;
      for (int d = 0; d < a.head_dim; d += kStepDims) {
        uint16_t* const at = to + (d * 2 * each + v * kStepDims);
        SplitRow(q + d, a.head_dim - d, at, at + each * kStepDims);
      }
    }
    to += Steps(a.head_dim) * 2 * each * kStepDims;
  }
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
    ahead.Line();
    ahead.Line();
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

void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void StoreScores(float scale, int each, float* scores) {
  alignas(64) float sums[4][kTileRows][16];
  _tile_stored(0, sums[0], kRowBytes);
  _tile_stored(1, sums[1], kRowBytes);
  _tile_stored(2, sums[2], kRowBytes);
  _tile_stored(3, sums[3], kRowBytes);
  const __m512 factor = _mm512_set1_ps(scale);
  for (int v = 0; v < each; ++v) {
    for (int half = 0; half < kHalves; ++half) {
      const __m512 sum = _mm512_add_ps(_mm512_load_ps(sums[2 * half][v]), _mm512_load_ps(sums[2 * half + 1][v]));
      _mm512_storeu_ps(scores + v * kTileTokens + half * 16, _mm512_mul_ps(sum, factor));
    }
  }
}

void TileScores(const ScoreArgs& a) {
  if (a.vectors < kMinVectors) return kAvx512Kernel.keys[kF16].scores(a);
  SplitTile keys[kMaxHeadDim / kStepDims][kHalves];
  const int each = VectorsOfPass(a.vectors);
  const int steps = Steps(a.head_dim);
  const auto* query = reinterpret_cast<const std::byte*>(a.packed + kScaleFloats);
  const int64_t step_bytes = int64_t{2} * each * kRowBytes;
  Prefetcher ahead(a.ahead, int64_t{a.head_dim} * kTileTokens * 2, 1);
  // A step is multiplied while the next one is split: what was just stored can't be loaded as a tile at once.
  ZeroSums();
  for (int s = 0; s < steps; ++s) {
    const int left = a.head_dim - s * kStepDims;
    SplitKeys(a.tile + int64_t{s} * kStepDims * kTileTokens * 2, left < kStepDims ? left : kStepDims, keys[s], ahead,
              [&]<int i>() FD_INLINE {
                if (s > 0) MultiplyQuarter<i>(query + (s - 1) * step_bytes, each, keys[s - 1]);
              });
  }
  MultiplyStep(query + (steps - 1) * step_bytes, each, keys[steps - 1]);
  StoreScores(a.packed[0], each, a.scores);
  for (int done = each; done < a.vectors; done += each) {
    query += steps * step_bytes;
    ZeroSums();
    for (int s = 0; s < steps; ++s) MultiplyStep(query + s * step_bytes, each, keys[s]);
    StoreScores(a.packed[0], each, a.scores + (done + each <= a.vectors ? done : a.vectors - each) * kTileTokens);
  }
}

// A part of the values: up to two vectors of 16 elements. Rows of tokens that don't exist hold anything.
template <int kVectors>
void SplitValues(const std::byte* rows, int tokens, SplitTile* columns, Prefetcher& ahead) {
  constexpr int kValueRow = kVectors * 32;
  for (int t = 0; t < kTileTokens; t += 2) {
    const std::byte* const row = rows + t * kValueRow;
    for (int v = 0; v < kVectors; ++v) {
      ahead.Line();
      const __m512 first = t < tokens ? Avx512::LoadF16(row + 32 * v) : _mm512_setzero_ps();
      const __m512 second = t + 1 < tokens ? Avx512::LoadF16(row + kValueRow + 32 * v) : _mm512_setzero_ps();
      SplitPair(first, second, columns[v].hi[t / 2], columns[v].lo[t / 2]);
    }
  }
}

// A of the values: weights [vectors][32 tokens].
struct alignas(64) SplitWeights {
  __m512bh hi[kTileRows];
  __m512bh lo[kTileRows];
};

// Vectors before `counted` get none: an earlier pass has them.
void SplitWeightRows(const float* weights, int counted, int each, SplitWeights& split) {
  for (int v = 0; v < each; ++v) {
    const __mmask16 kept = v < counted ? 0 : 0xffff;
    const __m512 first = _mm512_maskz_loadu_ps(kept, weights + v * kTileTokens);
    const __m512 second = _mm512_maskz_loadu_ps(kept, weights + v * kTileTokens + 16);
    const __m512 first_hi = Upper(first);
    const __m512 second_hi = Upper(second);
    split.hi[v] = _mm512_cvtne2ps_pbh(second_hi, first_hi);  // exact
    split.lo[v] = _mm512_cvtne2ps_pbh(_mm512_sub_ps(second, second_hi), _mm512_sub_ps(first, first_hi));
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
  if (a.vectors < kMinVectors) return kAvx512Kernel.values[kF16].add(a);
  SplitTile values[kMaxHeadDim / kPartDims][2];
  const int padded_dim = PaddedDim(a.head_dim);
  const int64_t stride = int64_t{padded_dim} * 4;
  const int parts = Parts(a.head_dim);
  const int each = VectorsOfPass(a.vectors);
  Prefetcher ahead(a.ahead, stride / 2 * kTileTokens, 1);
  SplitWeights weights;
  for (int done = 0; done < a.vectors; done += each) {
    const int begin = done + each <= a.vectors ? done : a.vectors - each;
    SplitWeightRows(a.weights + begin * kTileTokens, done - begin, each, weights);
    StoresBefore();
    _tile_loadd(4, weights.hi, kRowBytes);
    _tile_loadd(5, weights.lo, kRowBytes);
    float* const acc = a.acc + int64_t{begin} * padded_dim;
    for (int p = 0; p <= parts; ++p) {
      if (p < parts && done == 0) {
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
  }
}

}  // namespace

constinit const AmxOps kAmxOps = {&PackedQueryFloats, &PackQuery, &TileScores, &TileValues, &Enter, &Leave};

}  // namespace fastdecode::kernels
