// Scores of a tile, for any vector unit and any format of keys.
//
// A lane is a token. The query vectors of a KV head are taken in passes of nearly equal
// size, at most I::kMaxVectors; a pass holds its scores of T vectors of tokens in
// registers while it walks the dimensions, each of which costs T loads and conversions of
// keys and one broadcast a query vector. Keys come from memory once; from the second pass
// on they are in the first-level cache. Where there are few sums (few query vectors), the
// dimensions are dealt to U chains, so that no addition waits for the one before.
//
// The packed query is [pass][head_dim][vectors of the pass].
//
// An instruction set I has vectors F of kLanes floats, raw words W, and static functions;
// see avx2/vector_avx2.h and avx512/vector_avx512.h.
#pragma once

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

constexpr int64_t RoundUp64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline const uint16_t* Scales(const std::byte* tile, int64_t payload_bytes) {
  return reinterpret_cast<const uint16_t*>(tile + payload_bytes);
}

// kLanes elements that lie side by side, of a format of whole bytes; int8 without its scale.
template <class I, KvFormat kFormat>
FD_INLINE inline typename I::F LoadElements(const std::byte* p) {
  if constexpr (kFormat == KvFormat::kF16) return I::LoadF16(p);
  if constexpr (kFormat == KvFormat::kBf16) return I::LoadBf16(p);
  if constexpr (kFormat == KvFormat::kInt8) return I::LoadInt8(p);
}

template <class I, KvFormat kFormat>
struct ByteKeys {
  using Raw = typename I::F;
  static constexpr int kStep = 1;  // dimensions of a row
  static constexpr int kElementBytes = kFormat == KvFormat::kInt8 ? 1 : 2;
  static constexpr int kRowBytes = kTileTokens * kElementBytes;
  static constexpr bool kScaled = kFormat == KvFormat::kInt8;
  static constexpr int kGroupRows = kMaxHeadDim;  // that share a scale
  static Raw Load(const std::byte* row, int token) { return LoadElements<I, kFormat>(row + kElementBytes * token); }
  template <int>
  static Raw Get(Raw raw) {
    return raw;
  }
};
template <class I>
struct Int4Keys {
  using Raw = typename I::W;
  static constexpr int kStep = 8;
  static constexpr int kRowBytes = kTileTokens * 4;
  static constexpr bool kScaled = true;
  static constexpr int kGroupRows = kPartDims / kStep;
  static Raw Load(const std::byte* row, int token) { return I::LoadWords(row + 4 * token); }
  template <int kNibble>
  static typename I::F Get(Raw raw) {
    return I::template Nibble<kNibble>(raw);
  }
};

constexpr int Passes(int vectors, int max_vectors) { return (vectors + max_vectors - 1) / max_vectors; }

// Whether a pass of H query vectors may be one of several: these are of nearly equal size.
template <class I, int H>
constexpr bool IsOneOfMany() {
  return 2 * H >= I::kMaxVectors;
}

// Vectors of tokens whose scores a pass of H query vectors holds at once.
template <class I, int H>
constexpr int TokenVectors() {
  return kTileTokens / I::kLanes * H <= I::kMaxSums ? kTileTokens / I::kLanes : 2;
}

// How often passes over `vectors` query vectors walk over a tile's keys.
template <class I>
int KeyWalks(int vectors) {
  int walks = 0;
  const int passes = Passes(vectors, I::kMaxVectors);
  Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
    if ((vectors + passes - 1) / passes == h + 1) walks = passes * kTileTokens / (TokenVectors<I, h + 1>() * I::kLanes);
  });
  return walks;
}

template <class I, class Keys, int H, bool kOnce>
void ScorePass(const ScoreArgs& a, const float* q, float* scores, Prefetcher& ahead) {
  using F = typename I::F;
  constexpr int L = I::kLanes;
  constexpr int T = TokenVectors<I, H>();
  constexpr int U = I::kMaxSums / (T * H) >= 4 ? 4 : I::kMaxSums / (T * H) >= 2 ? 2 : 1;
  const int rows = a.head_dim / Keys::kStep;
  const uint16_t* const scales = Scales(a.tile, int64_t{rows} * Keys::kRowBytes);
  for (int t = 0; t < kTileTokens; t += T * L) {
    for (int g = 0; g * Keys::kGroupRows < rows; ++g) {
      F sum[U][H][T];
      Unroll<U>([&]<int u>() FD_INLINE {
        Unroll<H>([&]<int h>() FD_INLINE { Unroll<T>([&]<int i>() FD_INLINE { sum[u][h][i] = I::Zero(); }); });
      });
      const auto add = [&]<int u, int k>(const typename Keys::Raw* raw, const float* query) FD_INLINE {
        F key[T];
        Unroll<T>([&]<int i>() FD_INLINE { key[i] = Keys::template Get<k>(raw[i]); });
        Unroll<H>([&]<int h>() FD_INLINE {
          const F b = I::Broadcast(query + h);
          Unroll<T>([&]<int i>() FD_INLINE { sum[u][h][i] = I::Fma(key[i], b, sum[u][h][i]); });
        });
      };
      const int left = rows - g * Keys::kGroupRows;
      const int end = left < Keys::kGroupRows ? rows : (g + 1) * Keys::kGroupRows;
      constexpr int kRows = 8 / Keys::kStep;  // of 8 dimensions, of which head_dim is a multiple
      for (int r = g * Keys::kGroupRows; r < end; r += kRows) {
        ahead.Working<kOnce>(kRows * Keys::kRowBytes);
        const std::byte* const row = a.tile + int64_t{r} * Keys::kRowBytes;
        const float* const query = q + int64_t{r} * Keys::kStep * H;
        Unroll<kRows>([&]<int i>() FD_INLINE {
          ahead.Row<kOnce, Keys::kRowBytes, i>();
          typename Keys::Raw raw[T];
          Unroll<T>([&]<int v>() FD_INLINE { raw[v] = Keys::Load(row + i * Keys::kRowBytes, t + v * L); });
          Unroll<Keys::kStep>([&]<int k>() FD_INLINE {
            add.template operator()<(i + k) % U, k>(raw, query + (i * Keys::kStep + k) * H);
          });
        });
      }
      Unroll<H>([&]<int h>() FD_INLINE {
        Unroll<T>([&]<int i>() FD_INLINE {
          F total = sum[0][h][i];
          if constexpr (U == 2) total = I::Add(total, sum[1][h][i]);
          if constexpr (U == 4) total = I::Add(I::Add(total, sum[1][h][i]), I::Add(sum[2][h][i], sum[3][h][i]));
          float* const to = scores + h * kTileTokens + t + i * L;
          if constexpr (Keys::kScaled) {
            const F scale = I::LoadBf16(scales + g * kTileTokens + t + i * L);
            total = g == 0 ? I::Mul(total, scale) : I::Fma(total, scale, I::Load(to));
          }
          I::Store(to, total);
        });
      });
    }
  }
}

template <class I, class Keys>
void Scores(const ScoreArgs& a) {
  const int rows = a.head_dim / Keys::kStep;
  const int64_t payload = int64_t{rows} * Keys::kRowBytes;
  const int64_t groups = Keys::kScaled ? (rows + Keys::kGroupRows - 1) / Keys::kGroupRows : 0;
  Prefetcher ahead(a.ahead, payload + groups * kTileTokens * 2, KeyWalks<I>(a.vectors));
  const int passes = Passes(a.vectors, I::kMaxVectors);
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int count = (a.vectors - done + passes - pass - 1) / (passes - pass);
    const float* const q = a.packed + int64_t{done} * a.head_dim;
    float* const scores = a.scores + int64_t{done} * kTileTokens;
    Unroll<I::kMaxVectors>([&]<int h>() FD_INLINE {
      if (count != h + 1) return;
      if constexpr (TokenVectors<I, h + 1>() * I::kLanes == kTileTokens) {
        if (passes == 1) return ScorePass<I, Keys, h + 1, true>(a, q, scores, ahead);
      }
      if constexpr (IsOneOfMany<I, h + 1>() || TokenVectors<I, h + 1>() * I::kLanes < kTileTokens) {
        ScorePass<I, Keys, h + 1, false>(a, q, scores, ahead);
      }
    });
    done += count;
  }
  ahead.Rest();
}

inline int64_t PackedFloats(int32_t vectors, int32_t head_dim) { return int64_t{vectors} * head_dim; }

inline void WidenF16(const uint16_t* row, int32_t count, float* out) {
  for (int32_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i))));
  }
}

template <class I>
void LoadQuery(const QueryArgs& a) {
  const int vectors = a.rows * a.group;
  const int passes = Passes(vectors, I::kMaxVectors);
  float* to = a.packed;
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int count = (vectors - done + passes - pass - 1) / (passes - pass);
    for (int h = 0; h < count; ++h) {
      const int vector = done + h;
      const uint16_t* const q = a.q + vector / a.group * a.row_stride + int64_t{vector % a.group} * a.head_dim;
      alignas(64) float row[kMaxHeadDim];
      WidenF16(q, a.head_dim, row);
      for (int d = 0; d < a.head_dim; ++d) to[d * count + h] = row[d] * a.scale;
    }
    to += int64_t{count} * a.head_dim;
    done += count;
  }
}

}  // namespace
}  // namespace fastdecode::kernels
