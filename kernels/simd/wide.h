// Attention over f16 and bf16, for any vector unit: in scores a lane is a token, in values an
// element of the head; products and sums in f32.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/simd/passes.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

// kLanes elements from the given place on, of row `row` (a dimension of keys, a token of values); rows of `width`
// elements. bf16 has two rows in one of words, whose upper and lower halves they are.
template <class I, KvFormat kFormat>
FD_INLINE inline typename I::F LoadElements(const std::byte* rows, int row, int width, int from) {
  if constexpr (kFormat == KvFormat::kF16) return I::LoadF16(rows + (row * width + from) * 2);
  const typename I::W words = I::LoadWords(rows + (row / 2 * width + from) * 4);
  return row % 2 == 0 ? I::LowerBf16(words) : I::UpperBf16(words);
}

template <KvFormat kFormat>
struct WideKeys {
  static constexpr int kRowBytes = kTileTokens * 2;

  static int64_t TileBytes(int32_t head_dim) { return KeyTileBytes(kFormat, head_dim); }
  // Of a pass: [head_dim][vectors].
  static int64_t PackedFloats(int32_t vectors, int32_t head_dim) { return int64_t{vectors} * head_dim; }

  template <class I>
  static void LoadVector(const uint16_t* q, int32_t head_dim, float scale, int count, float* to) {
    alignas(64) float row[kMaxHeadDim];
    WidenF16(q, head_dim, row);
    for (int d = 0; d < head_dim; ++d) to[d * count] = row[d] * scale;
  }

  template <class I, int H, bool kOnce>
  static void Pass(const ScoreArgs& a, const float* q, float* scores, Prefetcher& ahead) {
    using F = typename I::F;
    constexpr int L = I::kLanes;
    constexpr int T = TokenVectors<I, H>();
    constexpr int U = Chains<I, T * H>();
    for (int t = 0; t < kTileTokens; t += T * L) {
      F sum[U][H][T];
      Unroll<U>([&]<int u>() FD_INLINE {
        Unroll<H>([&]<int h>() FD_INLINE { Unroll<T>([&]<int i>() FD_INLINE { sum[u][h][i] = I::Zero(); }); });
      });
      for (int d = 0; d < a.head_dim; d += 8) {  // of which head_dim is a multiple
        ahead.Working<kOnce, 8 * kRowBytes>();
        const std::byte* const rows = a.tile + int64_t{d} * kRowBytes;
        const float* const query = q + int64_t{d} * H;
        Unroll<8>([&]<int i>() FD_INLINE {
          ahead.Row<kOnce, 8 * kRowBytes, kRowBytes, i>();
          F key[T];
          Unroll<T>([&]<int v>() FD_INLINE { key[v] = LoadElements<I, kFormat>(rows, i, kTileTokens, t + v * L); });
          Unroll<H>([&]<int h>() FD_INLINE {
            const F b = I::Broadcast(query + i * H + h);
            Unroll<T>([&]<int v>() FD_INLINE { sum[i % U][h][v] = I::Fma(key[v], b, sum[i % U][h][v]); });
          });
        });
      }
      Unroll<H>([&]<int h>() FD_INLINE {
        Unroll<T>([&]<int i>() FD_INLINE {
          F total = sum[0][h][i];
          if constexpr (U == 2) total = I::Add(total, sum[1][h][i]);
          if constexpr (U == 4) total = I::Add(I::Add(total, sum[1][h][i]), I::Add(sum[2][h][i], sum[3][h][i]));
          I::Store(scores + h * kTileTokens + t + i * L, total);
        });
      });
    }
  }
};

template <KvFormat kFormat>
struct WideValues {
  static int64_t TileBytes(int32_t head_dim) { return ValueTileBytes(kFormat, head_dim); }

  // acc [H] rows += weights * one part of kVectors vectors of 16 elements.
  template <class I, int H, int kVectors, bool kOnce>
  static void AddPart(const float* weights, const std::byte* part, int tokens, float* acc, int padded_dim,
                      Prefetcher& ahead) {
    using F = typename I::F;
    constexpr int L = I::kLanes;
    constexpr int N = kVectors * 16 / L;
    constexpr int C = PartVectors<I, H, kVectors>();
    constexpr int kRowBytes = kVectors * 32;
    constexpr int kChains = Chains<I, C * H>();
    for (int first = 0; first < N; first += C) {
      F sum[kChains][H][C];
      Unroll<H>([&]<int h>() FD_INLINE {
        Unroll<C>([&]<int c>() FD_INLINE {
          sum[0][h][c] = I::Load(acc + h * padded_dim + (first + c) * L);
          Unroll<kChains - 1>([&]<int u>() FD_INLINE { sum[u + 1][h][c] = I::Zero(); });
        });
      });
      const auto add = [&]<int u>(const std::byte* rows, int row, int t) FD_INLINE {
        F value[C];
        Unroll<C>([&]<int c>()
                      FD_INLINE { value[c] = LoadElements<I, kFormat>(rows, row, kVectors * 16, (first + c) * L); });
        Unroll<H>([&]<int h>() FD_INLINE {
          const F weight = I::Broadcast(weights + h * kTileTokens + t);
          Unroll<C>([&]<int c>() FD_INLINE { sum[u][h][c] = I::Fma(weight, value[c], sum[u][h][c]); });
        });
      };
      int t = 0;
      for (; t + 8 <= tokens; t += 8) {
        ahead.Working<kOnce, 8 * kRowBytes>();
        Unroll<8>([&]<int i>() FD_INLINE {
          ahead.Row<kOnce, 8 * kRowBytes, kRowBytes, i>();
          add.template operator()<i % kChains>(part + int64_t{t} * kRowBytes, i, t + i);
        });
      }
      for (; t < tokens; ++t) add.template operator()<0>(part, t, t);
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

  template <class I, int H, bool kOnce>
  static void Pass(const ValueArgs& a, const float* weights, float* acc, int padded_dim, Prefetcher& ahead) {
    for (int d = 0; d < padded_dim; d += kPartDims) {
      const std::byte* const part = a.tile + int64_t{d} * kTileTokens * 2;
      if (padded_dim - d >= kPartDims) {
        AddPart<I, H, 2, kOnce>(weights, part, a.tokens, acc + d, padded_dim, ahead);
      } else {
        AddPart<I, H, 1, kOnce>(weights, part, a.tokens, acc + d, padded_dim, ahead);
      }
    }
  }
};

}  // namespace
}  // namespace fastdecode::kernels
