// How a tile's query vectors are taken, for any vector unit and any format.
//
// In passes of nearly equal size, at most I::kMaxVectors vectors each. A pass of H vectors holds its sums in
// registers: in scores, those of T vectors of tokens, while it walks the dimensions; in values,
// those of C vectors of elements, while it walks the tokens. Each line costs T or C loads and conversions
// and a broadcast a query vector. Lines come from memory once; from the second pass on they
// are in the first-level cache. Where there are few sums (few query vectors), the terms are
// dealt to U chains, so that no addition waits for the one before.
//
// An instruction set I has vectors F of kLanes floats, W of as many words of 32 bits, and static
// functions; see avx2/vector_avx2.h and avx512/vector_avx512.h. A format's Keys and Values
// do the passes: wide.h, integer.h.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

constexpr int Passes(int vectors, int max_vectors) { return (vectors + max_vectors - 1) / max_vectors; }

// Whether a pass of H query vectors may be one of several: these are of nearly equal size.
template <class I, int H>
constexpr bool IsOneOfMany() {
  return 2 * H >= I::kMaxVectors;
}

template <class I, int kSums>
constexpr int Chains() {
  return I::kMaxSums / kSums >= 4 ? 4 : I::kMaxSums / kSums >= 2 ? 2 : 1;
}

// Vectors of tokens whose scores a pass of H query vectors holds at once.
template <class I, int H>
constexpr int TokenVectors() {
  return kTileTokens / I::kLanes * H <= I::kMaxSums ? kTileTokens / I::kLanes : 2;
}

// Vectors of a part of kVectors * 16 elements whose sums a pass of H query vectors holds at once.
template <class I, int H, int kVectors>
constexpr int PartVectors() {
  constexpr int N = kVectors * 16 / I::kLanes;
  return N * H <= I::kMaxSums || N == 1 ? N : N * H / 2 <= I::kMaxSums || N == 2 ? N / 2 : N / 4;
}

// Calls visit<H>(vectors done before, number of passes) for each pass.
template <class I, class Visit>
FD_INLINE inline void ForPasses(int vectors, Visit visit) {
  const int passes = Passes(vectors, I::kMaxVectors);
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int count = (vectors - done + passes - pass - 1) / (passes - pass);
    Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
      if (count == h + 1) visit.template operator()<h + 1>(done, passes);
    });
    done += count;
  }
}

inline void WidenF16(const uint16_t* row, int32_t count, float* out) {
  for (int32_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i))));
  }
}

// How often passes over `vectors` query vectors walk over a tile's keys, and over its values.
template <class I>
int KeyWalks(int vectors) {
  int walks = 0;
  const int passes = Passes(vectors, I::kMaxVectors);
  Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
    if ((vectors + passes - 1) / passes == h + 1) walks = passes * kTileTokens / (TokenVectors<I, h + 1>() * I::kLanes);
  });
  return walks;
}
template <class I>
int ValueWalks(int vectors) {
  int walks = 0;
  const int passes = Passes(vectors, I::kMaxVectors);
  Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
    if ((vectors + passes - 1) / passes == h + 1) walks = passes * 32 / (PartVectors<I, h + 1, 2>() * I::kLanes);
  });
  return walks;
}

// The packed query: what Keys makes of each pass, one after another.
template <class I, class Keys>
void LoadQuery(const QueryArgs& a) {
  ForPasses<I>(a.rows * a.group, [&]<int H>(int done, int) FD_INLINE {
    float* const to = a.packed + Keys::PackedFloats(done, a.head_dim);
    for (int h = 0; h < H; ++h) {
      const int vector = done + h;
      const uint16_t* const q = a.q + vector / a.group * a.row_stride + int64_t{vector % a.group} * a.head_dim;
      Keys::template LoadVector<I>(q, a.head_dim, a.scale, H, to + h);
    }
  });
}

template <class I, class Keys>
void Scores(const ScoreArgs& a) {
  Prefetcher ahead(a.ahead, Keys::TileBytes(a.head_dim), KeyWalks<I>(a.vectors));
  ForPasses<I>(a.vectors, [&]<int H>(int done, int passes) FD_INLINE {
    const float* const packed = a.packed + Keys::PackedFloats(done, a.head_dim);
    float* const scores = a.scores + int64_t{done} * kTileTokens;
    if constexpr (TokenVectors<I, H>() * I::kLanes == kTileTokens) {
      if (passes == 1) return Keys::template Pass<I, H, true>(a, packed, scores, ahead);
    }
    if constexpr (IsOneOfMany<I, H>() || TokenVectors<I, H>() * I::kLanes < kTileTokens) {
      Keys::template Pass<I, H, false>(a, packed, scores, ahead);
    }
  });
  ahead.Rest();
}

template <class I, class Values>
void AddValues(const ValueArgs& a) {
  const int padded_dim = PaddedDim(a.head_dim);
  Prefetcher ahead(a.ahead, Values::TileBytes(a.head_dim), ValueWalks<I>(a.vectors));
  ForPasses<I>(a.vectors, [&]<int H>(int done, int passes) FD_INLINE {
    const float* const weights = a.weights + int64_t{done} * kTileTokens;
    float* const acc = a.acc + int64_t{done} * padded_dim;
    if constexpr (PartVectors<I, H, 2>() * I::kLanes == kPartDims) {
      if (passes == 1) return Values::template Pass<I, H, true>(a, weights, acc, padded_dim, ahead);
    }
    if constexpr (IsOneOfMany<I, H>() || PartVectors<I, H, 2>() * I::kLanes < kPartDims) {
      Values::template Pass<I, H, false>(a, weights, acc, padded_dim, ahead);
    }
  });
  ahead.Rest();
}

}  // namespace
}  // namespace fastdecode::kernels
