// Decode attention over bf16 with AMX: a tile of keys or values is multiplied as it lies in the cache, so
// nothing is converted, and what the query vectors cost beyond the reading is small.
#include <cstring>

#include "kernels/amx/amx_ops.h"
#include "kernels/amx/bf16_pairs.h"
#include "kernels/simd/prefetch.h"

namespace fastdecode::kernels {
namespace {

constexpr int kBf16 = static_cast<int>(KvFormat::kBf16);

int64_t PackedFloats(int32_t vectors, int32_t head_dim) {
  if (!UsesTilesDirectly(vectors, head_dim)) return kAvx512Kernel.keys[kBf16].packed_floats(vectors, head_dim);
  return PackedPairsFloats(vectors, head_dim);
}

void LoadQuery(const QueryArgs& a) {
  if (!UsesTilesDirectly(a.rows * a.group, a.head_dim)) return kAvx512Kernel.keys[kBf16].load_query(a);
  PackPairs(a);
}

void Scores(const ScoreArgs& a) {
  if (!UsesTilesDirectly(a.vectors, a.head_dim)) return kAvx512Kernel.keys[kBf16].scores(a);
  const int steps = Steps(a.head_dim);
  const int left = a.head_dim - (steps - 1) * kStepDims;
  alignas(64) std::byte last[kBlock];
  if (left < kStepDims) {  // the query is 0 there, but 0 * NaN is not
    const size_t there = static_cast<size_t>(left / 2) * kWordRow;
    std::memcpy(last, a.tile + int64_t{steps - 1} * kBlock, there);
    std::memset(last + there, 0, sizeof(last) - there);
  }
  const auto* query = reinterpret_cast<const std::byte*>(a.packed + kScaleFloats);
  Prefetcher ahead(a.ahead, int64_t{a.head_dim} * kTileTokens * 2, 1);
  ForTilePasses(a.vectors, [&](int begin, int each, int) FD_INLINE {
    ZeroSums();
    StoresBefore();
    for (int s = 0; s < steps; ++s, query += 2 * each * kRowBytes) {
      const std::byte* const keys = s == steps - 1 && left < kStepDims ? last : a.tile + int64_t{s} * kBlock;
      // The step's lines among its instructions, so that these do not wait behind them.
      const bool asks = begin == 0 && s + 1 < steps;
      const auto ask = [&]() FD_INLINE {
        if (asks) ahead.Quad();
      };
      _tile_loadd(4, query, kRowBytes);
      ask();
      _tile_loadd(6, keys, kWordRow);
      ask();
      _tile_dpbf16ps(0, 4, 6);
      ask();
      _tile_loadd(5, query + each * kRowBytes, kRowBytes);
      ask();
      _tile_dpbf16ps(1, 5, 6);
      ask();
      _tile_loadd(7, keys + kRowBytes, kWordRow);
      ask();
      _tile_dpbf16ps(2, 4, 7);
      ask();
      _tile_dpbf16ps(3, 5, 7);
      ask();
    }
    Sums sums;
    StoreSums(sums);
    ahead.Rest();  // while what was stored becomes readable
    AddPairs(sums, a.packed[0], each, a.scores + int64_t{begin} * kTileTokens);
  });
}

// A part of which only the first tokens exist, the others' bytes being anything: 0 * NaN is not 0.
void CopyPart(const std::byte* part, int width, int tokens, std::byte* to) {
  std::memset(to, 0, kBlock);
  for (int t = 0; t < tokens; t += 2) {
    const int64_t at = int64_t{t} / 2 * width * 4;
    std::memcpy(to + at, part + at, static_cast<size_t>(width) * 4);
    for (int i = 0; t + 1 == tokens && i < width; ++i) std::memset(to + at + 4 * i + 2, 0, 2);
  }
}

void AddValues(const ValueArgs& a) {
  if (!UsesTilesDirectly(a.vectors, a.head_dim)) return kAvx512Kernel.values[kBf16].add(a);
  const int padded_dim = PaddedDim(a.head_dim);
  const int64_t stride = int64_t{padded_dim} * 4;
  WeightPairs weights;
  alignas(64) std::byte copy[kBlock];
  Prefetcher ahead(a.ahead, int64_t{padded_dim} * kTileTokens * 2, 1);
  ForTilePasses(a.vectors, [&](int begin, int each, int had) FD_INLINE {
    SplitWeights(a.weights + int64_t{begin} * kTileTokens, each, had, weights);
    if (begin == 0) ahead.Bytes(kBlock);  // while what was stored becomes readable
    LoadWeights(weights);
    for (int d = 0; d < padded_dim; d += kPartDims) {
      float* const acc = a.acc + int64_t{begin} * padded_dim + d;
      const int width = padded_dim - d < kPartDims ? padded_dim - d : kPartDims;
      const std::byte* part = a.tile + int64_t{d} * kTileTokens * 2;
      if (a.tokens < kTileTokens) {
        CopyPart(part, width, a.tokens, copy);
        part = copy;
      }
      const bool asks = begin == 0 && d + kPartDims < padded_dim;  // a part's lines were asked for before the first
      const auto ask = [&]() FD_INLINE {
        if (asks) ahead.Quad();
      };
      StoresBefore();
      _tile_loadd(0, acc, stride);
      ask();
      _tile_loadd(6, part, width * 4);
      ask();
      _tile_dpbf16ps(0, 4, 6);
      ask();
      if (width == kPartDims) {
        _tile_loadd(1, acc + 16, stride);
        ask();
        _tile_loadd(7, part + kRowBytes, kWordRow);
        ask();
        _tile_dpbf16ps(1, 4, 7);
        ask();
        _tile_dpbf16ps(1, 5, 7);
        _tile_stored(1, acc + 16, stride);
      }
      _tile_dpbf16ps(0, 5, 6);
      ask();
      _tile_stored(0, acc, stride);
      ask();
    }
  });
  ahead.Rest();
}

}  // namespace

constinit const AmxOps kAmxBf16Ops = {&PackedFloats, &LoadQuery, &Scores, &AddValues};

}  // namespace fastdecode::kernels
