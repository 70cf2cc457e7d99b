// Decode attention with AMX: products of bf16 matrices on tiles, for many query vectors.
//
// One multiplication of tiles does what 512 lanes of vector instructions would, so that
// conversions are all that is left, and a group of any size that models have stays near
// the memory's speed. f32 accuracy out of bf16 inputs: an f16 is the exact sum of two bf16,
// hi and lo, and so are its products.
//   scores   rows of A: for each query vector hi and lo (unscaled, so exact); B: keys, hi
//            and lo, dimensions in pairs as the instruction wants them. All four products
//            are summed in f32, then scaled.
//   values   A: weights as hi + lo (to 2^-17); B: values, tokens in pairs. The product
//            lo * lo is left out.
// Keys and values are split once for all query vectors, into a buffer in the first-level
// cache. Below kMinVectors, and for the formats that are not listed here, AVX-512 does it.
#include <immintrin.h>

#include <cstring>

#include "kernels/avx512/vector_avx512.h"
#include "kernels/dispatch.h"
#include "kernels/simd/kernel.h"

namespace fastdecode::kernels {
namespace {

constexpr int kMinVectors = 5;
constexpr int kTileRows = 16;
constexpr int kTileBytes = kTileRows * 64;
constexpr int kStepDims = 32;     // that one multiplication sums over
constexpr int kScoreVectors = 8;  // of a pass; hi and lo fill the 16 rows of a tile
constexpr int kHalves = 2;        // of 16 tokens

// Tiles 0 .. 3: sums; 4, 5: A; 6, 7: B.
class Tiles {
 public:
  explicit Tiles(int rows) {
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 6; ++i) config.rows[i] = static_cast<uint8_t>(rows);
    config.rows[6] = config.rows[7] = kTileRows;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

constexpr int PaddedSteps(int head_dim) { return (head_dim + kStepDims - 1) / kStepDims; }

// Query vectors of a pass, the same for all but the last.
constexpr int VectorsOfPass(int vectors, int most) {
  const int passes = Passes(vectors, most);
  return (vectors + passes - 1) / passes;
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

// A: [pass][step][hi rows, lo rows of 32 dimensions], zero where there is no vector or dimension.
int64_t AmxPackedFloats(int32_t vectors, int32_t head_dim) {
  if (vectors < kMinVectors) return PackedFloats(vectors, head_dim);
  const int64_t rows = 2 * VectorsOfPass(vectors, kScoreVectors);
  return Passes(vectors, kScoreVectors) * PaddedSteps(head_dim) * rows * 64 / 4 + 16;
}

void AmxLoadQuery(const QueryArgs& a) {
  const int vectors = a.rows * a.group;
  if (vectors < kMinVectors) return LoadQuery<Avx512>(a);
  const int each = VectorsOfPass(vectors, kScoreVectors);
  const int steps = PaddedSteps(a.head_dim);
  std::memset(a.packed, 0, static_cast<size_t>(AmxPackedFloats(vectors, a.head_dim)) * sizeof(float));
  a.packed[0] = a.scale;
  auto* const out = reinterpret_cast<uint16_t*>(a.packed + 16);
  for (int v = 0; v < vectors; ++v) {
    alignas(64) float row[kMaxHeadDim];
    WidenF16(a.q + v / a.group * a.row_stride + int64_t{v % a.group} * a.head_dim, a.head_dim, row);
    uint16_t* const pass = out + int64_t{v / each} * steps * 2 * each * kStepDims;
    for (int d = 0; d < a.head_dim; ++d) {
      const uint32_t bits = std::bit_cast<uint32_t>(row[d]);
      const float hi = std::bit_cast<float>(bits & 0xffff0000u);
      uint16_t* const to = pass + (d / kStepDims * 2 * each + v % each) * kStepDims + d % kStepDims;
      to[0] = static_cast<uint16_t>(bits >> 16);
      to[each * kStepDims] = static_cast<uint16_t>(std::bit_cast<uint32_t>(row[d] - hi) >> 16);
    }
  }
}

struct alignas(64) SplitKeys {  // [half][pair of dimensions][16 tokens]
  std::byte hi[kHalves][kMaxHeadDim / 2][64];
  std::byte lo[kHalves][kMaxHeadDim / 2][64];
};

void SplitKeyTile(const ScoreArgs& a, SplitKeys& keys) {
  Prefetcher ahead(a.ahead, int64_t{a.head_dim} * kTileTokens * 2);
  for (int d = 0; d < a.head_dim; d += 2) {
    const std::byte* const row = a.tile + int64_t{d} * kTileTokens * 2;
    ahead.Row<2 * kTileTokens * 2>(d / 2);
    for (int half = 0; half < kHalves; ++half) {
      SplitPair(Avx512::LoadF16(row + 32 * half), Avx512::LoadF16(row + kTileTokens * 2 + 32 * half),
                keys.hi[half][d / 2], keys.lo[half][d / 2]);
    }
  }
  for (int p = a.head_dim / 2; p < PaddedSteps(a.head_dim) * kStepDims / 2; ++p) {
    for (int half = 0; half < kHalves; ++half) {
      std::memset(keys.hi[half][p], 0, 64);
      std::memset(keys.lo[half][p], 0, 64);
    }
  }
}

void AmxScores(const ScoreArgs& a) {
  if (a.vectors < kMinVectors) return Scores<Avx512, ByteKeys<Avx512, KvFormat::kF16>>(a);
  SplitKeys keys;
  SplitKeyTile(a, keys);
  const int each = VectorsOfPass(a.vectors, kScoreVectors);
  const int steps = PaddedSteps(a.head_dim);
  const Tiles tiles(2 * each);
  const auto* queries = reinterpret_cast<const std::byte*>(a.packed + 16);
  const __m512 scale = _mm512_set1_ps(a.packed[0]);
  alignas(64) float sums[4][kTileRows][16];  // half 0 hi, lo, half 1 hi, lo
  for (int done = 0; done < a.vectors; done += each) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < steps; ++s, queries += 2 * each * 64) {
      _tile_loadd(4, queries, 64);
      _tile_loadd(6, keys.hi[0][s * 16], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, keys.lo[0][s * 16], 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(6, keys.hi[1][s * 16], 64);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, keys.lo[1][s * 16], 64);
      _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    for (int v = 0; v < each && done + v < a.vectors; ++v) {
      for (int half = 0; half < kHalves; ++half) {
        const auto& hi = sums[2 * half];
        const auto& lo = sums[2 * half + 1];
        const __m512 small = _mm512_add_ps(_mm512_load_ps(lo[v]), _mm512_load_ps(lo[v + each]));
        const __m512 large = _mm512_add_ps(_mm512_load_ps(hi[v]), _mm512_load_ps(hi[v + each]));
        _mm512_storeu_ps(a.scores + (done + v) * kTileTokens + half * 16,
                         _mm512_mul_ps(_mm512_add_ps(large, small), scale));
      }
    }
  }
}

struct alignas(64) SplitValues {  // [16 elements of the head][pair of tokens][16 elements]
  std::byte hi[kMaxHeadDim / 16][kTileRows][64];
  std::byte lo[kMaxHeadDim / 16][kTileRows][64];
};

void SplitValueTile(const ValueArgs& a, SplitValues& values) {
  const int padded_dim = PaddedDim(a.head_dim);
  const int columns = padded_dim / 16;
  Prefetcher ahead(a.ahead, int64_t{padded_dim} * kTileTokens * 2);
  for (int t = 0; t < kTileTokens; t += 2) {
    const std::byte* const row = a.tile + int64_t{t} * padded_dim * 2;
    for (int c = 0; c < columns; ++c) {
      ahead.Line();
      // Rows of tokens that don't exist hold anything.
      const __m512 first = t < a.tokens ? Avx512::LoadF16(row + 32 * c) : _mm512_setzero_ps();
      const __m512 second = t + 1 < a.tokens ? Avx512::LoadF16(row + padded_dim * 2 + 32 * c) : _mm512_setzero_ps();
      SplitPair(first, second, values.hi[c][t / 2], values.lo[c][t / 2]);
    }
  }
}

// A: weights [vectors][32 tokens] as hi and lo.
struct alignas(64) SplitWeights {
  __m512bh hi[kTileRows];
  __m512bh lo[kTileRows];
};

void SplitWeightRows(const float* weights, int count, SplitWeights& split) {
  for (int v = 0; v < count; ++v) {
    const __m512 first = _mm512_loadu_ps(weights + v * kTileTokens);
    const __m512 second = _mm512_loadu_ps(weights + v * kTileTokens + 16);
    const __m512 first_hi = Upper(first);
    const __m512 second_hi = Upper(second);
    split.hi[v] = _mm512_cvtne2ps_pbh(second_hi, first_hi);  // exact
    split.lo[v] = _mm512_cvtne2ps_pbh(_mm512_sub_ps(second, second_hi), _mm512_sub_ps(first, first_hi));
  }
}

void AmxAddValues(const ValueArgs& a) {
  if (a.vectors < kMinVectors) return AddValues<Avx512, ByteValues<Avx512, KvFormat::kF16>>(a);
  SplitValues values;
  SplitValueTile(a, values);
  const int padded_dim = PaddedDim(a.head_dim);
  const int columns = padded_dim / 16;
  const int passes = Passes(a.vectors, kTileRows);
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int count = (a.vectors - done + passes - pass - 1) / (passes - pass);
    SplitWeights weights;
    SplitWeightRows(a.weights + int64_t{done} * kTileTokens, count, weights);
    const Tiles tiles(count);
    _tile_loadd(4, weights.hi, 64);
    _tile_loadd(5, weights.lo, 64);
    float* const acc = a.acc + int64_t{done} * padded_dim;
    const int64_t stride = int64_t{padded_dim} * 4;
    int c = 0;
    for (; c + 1 < columns; c += 2) {
      _tile_loadd(0, acc + c * 16, stride);
      _tile_loadd(1, acc + c * 16 + 16, stride);
      _tile_loadd(6, values.hi[c], 64);
      _tile_loadd(7, values.hi[c + 1], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(0, 5, 6);
      _tile_dpbf16ps(1, 5, 7);
      _tile_loadd(6, values.lo[c], 64);
      _tile_loadd(7, values.lo[c + 1], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_stored(0, acc + c * 16, stride);
      _tile_stored(1, acc + c * 16 + 16, stride);
    }
    if (c < columns) {
      _tile_loadd(0, acc + c * 16, stride);
      _tile_loadd(6, values.hi[c], 64);
      _tile_loadd(7, values.lo[c], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(0, 5, 6);
      _tile_dpbf16ps(0, 4, 7);
      _tile_stored(0, acc + c * 16, stride);
    }
    done += count;
  }
}

constexpr AttentionKernel MakeAmx() {
  AttentionKernel kernel =
      MakeKernel<Avx512>("amx", "AMX tiles of bf16 pairs for five query vectors and more, else AVX-512",
                         kAvx2 | kFma | kF16c | kAvx512f | kAvx512vl | kAvx512dq | kAvx512bw | kAvx512bf16 | kAmxBf16);
  constexpr int kF16 = static_cast<int>(KvFormat::kF16);
  kernel.keys[kF16].packed_floats = &AmxPackedFloats;
  kernel.keys[kF16].load_query = &AmxLoadQuery;
  kernel.keys[kF16].scores = &AmxScores;
  kernel.values[kF16].add = &AmxAddValues;
  return kernel;
}

}  // namespace

extern const AttentionKernel kAmxKernel;
constinit const AttentionKernel kAmxKernel = MakeAmx();

}  // namespace fastdecode::kernels
