// Weighted sums of a tile's values, for any vector unit and any format of values.
//
// A lane is an element of the head. The output vectors are taken in passes of H query
// vectors and C vectors of a part of the head, whose sums stay in registers while the
// tile's tokens go by: C loads and conversions of values and one broadcast a query vector
// for each token. Where there are few sums, tokens are dealt to U chains, so that no
// addition waits for the one before. A value's scale is a factor of its token's weight.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/simd/keys.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

template <class I, KvFormat kFormat>
struct ByteValues {
  static constexpr int kElementBits = kFormat == KvFormat::kInt8 ? 8 : 16;
  static constexpr bool kScaled = kFormat == KvFormat::kInt8;
  static constexpr bool kScalePerPart = false;
  template <int>
  static constexpr int kTokensOfRow = 1;
  // Vector C0 + c of token k of a row of the part, which has kVectors vectors of 16 elements.
  template <int kVectors, int>
  static FD_INLINE typename I::F Load(const std::byte* row, int vector) {
    return LoadElements<I, kFormat>(row + vector * I::kLanes * kElementBits / 8);
  }
};
template <class I>
struct Int4Values {
  static constexpr int kElementBits = 4;
  static constexpr bool kScaled = true;
  static constexpr bool kScalePerPart = true;
  template <int kVectors>
  static constexpr int kTokensOfRow = 8 / kVectors;
  template <int kVectors, int kToken>
  static FD_INLINE typename I::F Load(const std::byte* row, int vector) {
    constexpr int kOfSixteen = 16 / I::kLanes;
    const typename I::W words = I::LoadWords(row + vector % kOfSixteen * I::kLanes * 4);
    return vector / kOfSixteen == 0 ? I::template Nibble<kToken * kVectors>(words)
                                    : I::template Nibble<kToken * kVectors + kVectors - 1>(words);
  }
};

// Vectors of a part of kVectors * 16 elements whose sums a pass of H query vectors holds at once.
template <class I, int H, int kVectors>
constexpr int PartVectors() {
  constexpr int N = kVectors * 16 / I::kLanes;
  return N * H <= I::kMaxSums || N == 1 ? N : N * H / 2 <= I::kMaxSums || N == 2 ? N / 2 : N / 4;
}

// How often passes over `vectors` query vectors walk over a tile's values.
template <class I>
int ValueWalks(int vectors) {
  int walks = 0;
  const int passes = Passes(vectors, I::kMaxVectors);
  Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
    if ((vectors + passes - 1) / passes == h + 1) walks = passes * 32 / (PartVectors<I, h + 1, 2>() * I::kLanes);
  });
  return walks;
}

// acc [H] rows += weights * one part of kVectors vectors of 16 elements.
template <class I, class Values, int H, int kVectors, bool kOnce>
void AddPart(const float* weights, const std::byte* part, int tokens, float* acc, int padded_dim, Prefetcher& ahead) {
  using F = typename I::F;
  constexpr int L = I::kLanes;
  constexpr int N = kVectors * 16 / L;
  constexpr int C = PartVectors<I, H, kVectors>();
  constexpr int kRowTokens = Values::template kTokensOfRow<kVectors>;
  constexpr int kRowBytes = kVectors * 16 * Values::kElementBits * kRowTokens / 8;
  constexpr int kChains = I::kMaxSums / (C * H) >= 4 ? 4 : I::kMaxSums / (C * H) >= 2 ? 2 : 1;
  for (int first = 0; first < N; first += C) {
    F sum[kChains][H][C];
    Unroll<H>([&]<int h>() FD_INLINE {
      Unroll<C>([&]<int c>() FD_INLINE {
        sum[0][h][c] = I::Load(acc + h * padded_dim + (first + c) * L);
        Unroll<kChains - 1>([&]<int u>() FD_INLINE { sum[u + 1][h][c] = I::Zero(); });
      });
    });
    const auto add = [&]<int u, int k>(int t) FD_INLINE {  // token t, number k of its row
      const std::byte* const row = part + int64_t{t / kRowTokens} * kRowBytes;
      F value[C];
      Unroll<C>([&]<int c>() FD_INLINE { value[c] = Values::template Load<kVectors, k>(row, first + c); });
      Unroll<H>([&]<int h>() FD_INLINE {
        const F weight = I::Broadcast(weights + h * kTileTokens + t);
        Unroll<C>([&]<int c>() FD_INLINE { sum[u][h][c] = I::Fma(weight, value[c], sum[u][h][c]); });
      });
    };
    int t = 0;
    // Rows of several tokens are taken whole: the weights of absent tokens are 0, the values finite.
    for (; t + (kRowTokens == 1 ? 8 : 1) <= tokens; t += 8) {
      ahead.Working<kOnce>(8 / kRowTokens * kRowBytes);
      Unroll<8>([&]<int i>() FD_INLINE {
        if constexpr (i % kRowTokens == 0) ahead.Row<kOnce, kRowBytes, i / kRowTokens>();
        add.template operator()<i % kChains, i % kRowTokens>(t + i);
      });
    }
    if constexpr (kRowTokens == 1) {
      for (; t < tokens; ++t) add.template operator()<0, 0>(t);
    }
    Unroll<H>([&]<int h>() FD_INLINE {
      Unroll<C>([&]<int c>() FD_INLINE {
        F total = sum[0][h][c];
        if constexpr (kChains == 2) total = I::Add(total, sum[1][h][c]);
        if constexpr (kChains == 4) total = I::Add(I::Add(total, sum[1][h][c]), I::Add(sum[2][h][c], sum[3][h][c]));
        I::Store(acc + h * padded_dim + (first + c) * L, total);
      });
    });
  }
}

template <class I, class Values, int H, bool kOnce>
void AddPass(const ValueArgs& a, const float* weights, float* acc, int padded_dim, Prefetcher& ahead) {
  const uint16_t* const scales = Scales(a.tile, int64_t{kTileTokens} * padded_dim * Values::kElementBits / 8);
  alignas(64) float scaled[Values::kScaled ? H * kTileTokens : 1];
  for (int d = 0; d < padded_dim; d += kPartDims) {
    const float* factors = weights;
    if constexpr (Values::kScaled) {
      if (d == 0 || Values::kScalePerPart) {
        for (int t = 0; t < kTileTokens; t += I::kLanes) {
          const typename I::F scale = I::LoadBf16(scales + d / kPartDims * kTileTokens + t);
          Unroll<H>([&]<int h>() FD_INLINE {
            I::Store(scaled + h * kTileTokens + t, I::Mul(I::Load(weights + h * kTileTokens + t), scale));
          });
        }
        for (int t = a.tokens; t < kTileTokens; ++t) {  // whose scales are anything
          for (int h = 0; h < H; ++h) scaled[h * kTileTokens + t] = 0;
        }
      }
      factors = scaled;
    }
    const std::byte* const part = a.tile + int64_t{d} * kTileTokens * Values::kElementBits / 8;
    if (padded_dim - d >= kPartDims) {
      AddPart<I, Values, H, 2, kOnce>(factors, part, a.tokens, acc + d, padded_dim, ahead);
    } else {
      AddPart<I, Values, H, 1, kOnce>(factors, part, a.tokens, acc + d, padded_dim, ahead);
    }
  }
}

template <class I, class Values>
void AddValues(const ValueArgs& a) {
  const int padded_dim = PaddedDim(a.head_dim);
  const int64_t payload = int64_t{kTileTokens} * padded_dim * Values::kElementBits / 8;
  const int64_t scale_rows = !Values::kScaled ? 0 : Values::kScalePerPart ? Parts(a.head_dim) : 1;
  Prefetcher ahead(a.ahead, payload + scale_rows * kTileTokens * 2, ValueWalks<I>(a.vectors));
  const int passes = Passes(a.vectors, I::kMaxVectors);
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int count = (a.vectors - done + passes - pass - 1) / (passes - pass);
    const float* const weights = a.weights + int64_t{done} * kTileTokens;
    float* const acc = a.acc + int64_t{done} * padded_dim;
    Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
      if (count != h + 1) return;
      if constexpr (PartVectors<I, h + 1, 2>() * I::kLanes == kPartDims) {
        if (passes == 1) return AddPass<I, Values, h + 1, true>(a, weights, acc, padded_dim, ahead);
      }
      if constexpr (IsOneOfMany<I, h + 1>() || PartVectors<I, h + 1, 2>() * I::kLanes < kPartDims) {
        AddPass<I, Values, h + 1, false>(a, weights, acc, padded_dim, ahead);
      }
    });
    done += count;
  }
  ahead.Rest();
}

}  // namespace
}  // namespace fastdecode::kernels
