// Attention over int8 and int4 in integers, for any vector unit.
//
// A word of 32 bits holds 32 / kBits elements, each plus an offset: dimensions of a token's
// key, or tokens of an element of the values. A mask, a shift or both take two of them out of all words
// of a vector, as pairs of 16 bits; one multiplication of pairs by pairs adds both products to
// a sum of 32 bits. So the query and the weights have 16 bits, too: fixed point, relative to
// the largest element of a head's query, and to the largest weight of a tile (the values' scales in
// it). That costs 2^-16 of the largest, where what is stored has 2^-8 and 2^-4. The sums
// are exact, being below 255 * 32767 * 256; they start at minus what the offsets add.
#pragma once

#include <cstring>

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/quantise.h"
#include "kernels/simd/passes.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/store.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

inline constexpr float kLargestShort = 32767.0f;

template <int kBits>
struct Words {
  static constexpr KvFormat kFormat = kBits == 8 ? KvFormat::kInt8 : KvFormat::kInt4;
  static constexpr int kElements = 32 / kBits;
  static constexpr int kFields = 16 / kBits;
  static constexpr int kOffset = 1 << (kBits - 1);
};

inline const uint16_t* Scales(const std::byte* tile, int64_t payload_bytes) {
  return reinterpret_cast<const uint16_t*>(tile + payload_bytes);
}

// `count` sums out of those of U chains.
template <class I, int U, int H, int C>
FD_INLINE inline void AddChains(typename I::W (&sum)[U][H][C]) {
  Unroll<U - 1>([&]<int u>() FD_INLINE {
    Unroll<H>([&]<int h>() FD_INLINE {
      Unroll<C>([&]<int c>() FD_INLINE { sum[0][h][c] = I::AddWords(sum[0][h][c], sum[u + 1][h][c]); });
    });
  });
}

// Dimensions that share a scale: all of int8, a part of int4.
template <int kBits>
struct IntegerKeys {
  using Word = Words<kBits>;
  static constexpr int kRowBytes = kTileTokens * 4;
  static constexpr int kGroupRows = kBits == 8 ? kMaxHeadDim : kPartDims / Word::kElements;

  static int32_t Groups(int32_t head_dim) { return kBits == 8 ? 1 : Parts(head_dim); }
  static int64_t TileBytes(int32_t head_dim) { return KeyTileBytes(Word::kFormat, head_dim); }
  // Of a pass: pairs [head_dim / 2][vectors], starts [groups][vectors], factors [vectors].
  static int64_t PackedFloats(int32_t vectors, int32_t head_dim) {
    return int64_t{vectors} * (head_dim / 2 + Groups(head_dim) + 1);
  }

  template <class I>
  static void LoadVector(const uint16_t* q, int32_t head_dim, float scale, int count, float* to) {
    alignas(64) float row[kMaxHeadDim];
    alignas(64) int16_t shorts[kMaxHeadDim];
    WidenF16(q, head_dim, row);
    for (int d = head_dim; d % I::kLanes != 0; ++d) row[d] = 0;
    const float largest = std::fabs(Extreme(row, head_dim));  // NaN if not finite, and then so are the scores
    const typename I::F inverse = I::Set(largest > 0 ? kLargestShort / largest : 0);
    for (int d = 0; d < head_dim; d += I::kLanes) {
      I::StoreShorts(shorts + d, I::Rounded(I::Mul(I::Load(row + d), inverse)));
    }
    for (int d = 0; d < head_dim; d += 2) std::memcpy(to + d / 2 * count, shorts + d, 4);
    to += int64_t{head_dim / 2} * count;
    for (int g = 0; g < Groups(head_dim); ++g) {
      const int begin = g * kGroupRows * Word::kElements;
      const int end = head_dim - begin < kGroupRows * Word::kElements ? head_dim : begin + kGroupRows * Word::kElements;
      int32_t sum = 0;
      for (int d = begin; d < end; ++d) sum += shorts[d];
      const int32_t start = -Word::kOffset * sum;
      std::memcpy(to + g * count, &start, 4);
    }
    to[Groups(head_dim) * count] = largest / kLargestShort * scale;
  }

  template <class I, int H, bool kOnce>
  static void Pass(const ScoreArgs& a, const float* packed, float* scores, Prefetcher& ahead) {
    using F = typename I::F;
    using W = typename I::W;
    constexpr int L = I::kLanes;
    constexpr int T = TokenVectors<I, H>();
    constexpr int U = Chains<I, T * H>();
    constexpr int kRows = 8 / Word::kElements;  // of 8 dimensions, of which head_dim is a multiple
    const int rows = a.head_dim / Word::kElements;
    const uint16_t* const scales = Scales(a.tile, int64_t{rows} * kRowBytes);
    const float* const starts = packed + int64_t{a.head_dim / 2} * H;
    const float* const factors = starts + Groups(a.head_dim) * H;
    for (int t = 0; t < kTileTokens; t += T * L) {
      for (int g = 0; g * kGroupRows < rows; ++g) {
        W sum[U][H][T];
        Unroll<H>([&]<int h>() FD_INLINE {
          Unroll<T>([&]<int i>() FD_INLINE {
            sum[0][h][i] = I::BroadcastWord(starts + g * H + h);
            Unroll<U - 1>([&]<int u>() FD_INLINE { sum[u + 1][h][i] = I::ZeroWords(); });
          });
        });
        const int end = rows - g * kGroupRows < kGroupRows ? rows : (g + 1) * kGroupRows;
        for (int r = g * kGroupRows; r < end; r += kRows) {
          ahead.Working<kOnce, kRows * kRowBytes>();
          Unroll<kRows>([&]<int i>() FD_INLINE {
            ahead.Row<kOnce, kRows * kRowBytes, kRowBytes, i>();
            const std::byte* const row = a.tile + int64_t{r + i} * kRowBytes;
            const float* const query = packed + int64_t{r + i} * Word::kFields * H;
            W word[T];
            Unroll<T>([&]<int v>() FD_INLINE { word[v] = I::LoadWords(row + (t + v * L) * 4); });
            Unroll<Word::kFields>([&]<int k>() FD_INLINE {
              constexpr int u = (i * Word::kFields + k) % U;
              W key[T];
              Unroll<T>([&]<int v>() FD_INLINE { key[v] = I::template Field<kBits, k>(word[v]); });
              Unroll<H>([&]<int h>() FD_INLINE {
                const W pair = I::BroadcastWord(query + k * H + h);
                Unroll<T>([&]<int v>() FD_INLINE { sum[u][h][v] = I::Dot(sum[u][h][v], key[v], pair); });
              });
            });
          });
        }
        AddChains<I>(sum);
        Unroll<T>([&]<int i>() FD_INLINE {
          const F scale = I::LoadBf16(scales + g * kTileTokens + t + i * L);
          Unroll<H>([&]<int h>() FD_INLINE {
            float* const to = scores + h * kTileTokens + t + i * L;
            const F factor = I::Mul(scale, I::Broadcast(factors + h));
            const F total = I::OfWords(sum[0][h][i]);
            I::Store(to, g == 0 ? I::Mul(total, factor) : I::Fma(total, factor, I::Load(to)));
          });
        });
      }
    }
  }
};

template <int kBits>
struct IntegerValues {
  using Word = Words<kBits>;
  static int64_t TileBytes(int32_t head_dim) { return ValueTileBytes(Word::kFormat, head_dim); }

  // The weights of a tile, scales in them.
  template <int H>
  struct Weights {
    alignas(64) int16_t shorts[H][kTileTokens];
    int32_t start[H];
    float factor[H];
  };

  // `scales` of absent tokens may be anything.
  template <class I, int H>
  static void Pack(const float* weights, const uint16_t* scales, int tokens, Weights<H>& packed) {
    using F = typename I::F;
    constexpr int N = kTileTokens / I::kLanes;
    const uint32_t present = tokens == kTileTokens ? ~0u : (1u << tokens) - 1;
    F scale[N];
    Unroll<N>([&]<int i>() FD_INLINE {
      scale[i] = I::Keep(I::LoadBf16(scales + i * I::kLanes), present >> (i * I::kLanes), 0.0f);
    });
    Unroll<H>([&]<int h>() FD_INLINE {
      F w[N];
      Unroll<N>([&]<int i>()
                    FD_INLINE { w[i] = I::Mul(I::Load(weights + h * kTileTokens + i * I::kLanes), scale[i]); });
      F top = I::Abs(w[0]);
      Unroll<N - 1>([&]<int i>() FD_INLINE { top = I::MaxBits(top, I::Abs(w[i + 1])); });
      const float largest = I::ReduceMaxBits(top);
      const F inverse = I::Set(kLargestShort / largest);
      typename I::W sum = I::ZeroWords();
      Unroll<N>([&]<int i>() FD_INLINE {
        const typename I::W rounded = I::Rounded(I::Mul(w[i], inverse));
        I::StoreShorts(packed.shorts[h] + i * I::kLanes, rounded);
        sum = I::AddWords(sum, rounded);
      });
      packed.start[h] = static_cast<int32_t>(-uint32_t{Word::kOffset} * static_cast<uint32_t>(I::ReduceAdd(sum)));
      packed.factor[h] = largest / kLargestShort;
    });
  }

  template <class I, int H, int kVectors, bool kOnce>
  static void AddPart(const Weights<H>& weights, const std::byte* part, int tokens, float* acc, int padded_dim,
                      Prefetcher& ahead) {
    using W = typename I::W;
    constexpr int L = I::kLanes;
    constexpr int N = kVectors * 16 / L;
    constexpr int C = PartVectors<I, H, kVectors>();
    constexpr int U = Chains<I, C * H>();
    constexpr int kRowBytes = kVectors * 64;
    constexpr int kRows = 8 / Word::kElements;
    for (int first = 0; first < N; first += C) {
      W sum[U][H][C];
      Unroll<H>([&]<int h>() FD_INLINE {
        Unroll<C>([&]<int c>() FD_INLINE {
          sum[0][h][c] = I::SetWords(weights.start[h]);
          Unroll<U - 1>([&]<int u>() FD_INLINE { sum[u + 1][h][c] = I::ZeroWords(); });
        });
      });
      for (int t = 0; t < tokens; t += 8) {
        ahead.Working<kOnce, kRows * kRowBytes>();
        Unroll<kRows>([&]<int i>() FD_INLINE {
          ahead.Row<kOnce, kRows * kRowBytes, kRowBytes, i>();
          const std::byte* const row = part + (int64_t{t} / Word::kElements + i) * kRowBytes;
          W word[C];
          Unroll<C>([&]<int c>() FD_INLINE { word[c] = I::LoadWords(row + (first + c) * L * 4); });
          Unroll<Word::kFields>([&]<int k>() FD_INLINE {
            constexpr int u = (i * Word::kFields + k) % U;
            W value[C];
            Unroll<C>([&]<int c>() FD_INLINE { value[c] = I::template Field<kBits, k>(word[c]); });
            Unroll<H>([&]<int h>() FD_INLINE {
              const W pair = I::BroadcastWord(weights.shorts[h] + t + i * Word::kElements + 2 * k);
              Unroll<C>([&]<int c>() FD_INLINE { sum[u][h][c] = I::Dot(sum[u][h][c], value[c], pair); });
            });
          });
        });
      }
      AddChains<I>(sum);
      Unroll<H>([&]<int h>() FD_INLINE {
        const typename I::F factor = I::Set(weights.factor[h]);
        Unroll<C>([&]<int c>() FD_INLINE {
          float* const to = acc + h * padded_dim + (first + c) * L;
          I::Store(to, I::Fma(I::OfWords(sum[0][h][c]), factor, I::Load(to)));
        });
      });
    }
  }

  template <class I, int H, bool kOnce>
  static void Pass(const ValueArgs& a, const float* weights, float* acc, int padded_dim, Prefetcher& ahead) {
    const uint16_t* const scales = Scales(a.tile, int64_t{kTileTokens} * padded_dim * kBits / 8);
    // All before the first is needed: what each waits for on the way, the others hide.
    Weights<H> weights_of[kBits == 8 ? 1 : kMaxHeadDim / kPartDims];
    const int scale_rows = kBits == 8 ? 1 : Parts(padded_dim);
    for (int r = 0; r < scale_rows; ++r) Pack<I, H>(weights, scales + r * kTileTokens, a.tokens, weights_of[r]);
    for (int d = 0; d < padded_dim; d += kPartDims) {
      const Weights<H>& packed = weights_of[kBits == 8 ? 0 : d / kPartDims];
      const std::byte* const part = a.tile + int64_t{d} * kTileTokens * kBits / 8;
      if (padded_dim - d >= kPartDims) {
        AddPart<I, H, 2, kOnce>(packed, part, a.tokens, acc + d, padded_dim, ahead);
      } else {
        AddPart<I, H, 1, kOnce>(packed, part, a.tokens, acc + d, padded_dim, ahead);
      }
    }
  }
};

}  // namespace
}  // namespace fastdecode::kernels
