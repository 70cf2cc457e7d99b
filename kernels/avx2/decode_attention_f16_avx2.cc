// Decode attention with AVX2, FMA and F16C.
//
// A context is walked in tiles of up to kTileTokens tokens, whose keys and values lie
// in one run of a block, and a tile in strips of 8 tokens; all KV heads of the piece
// over one tile before the next tile, as they lie in memory. The query heads of a KV
// head are taken 8, 4, 2 or 1 at a time (H), with 8 accumulators in every case:
//   scores   8 / H tokens x H heads, reduced together into one vector, so that scores lie as
//            [token][H] and the online softmax runs down the vector's lanes;
//   values   H heads x 8 / H vectors of 8 elements of the head, over the strip's tokens.
// So keys and values are converted to f32 once for H heads and come from memory once
// for the whole group; from the second H on they are in the first-level cache.
//
// Memory, measured on a server of 2023 (one core, 17.7 GB/s of plain reading): while a
// strip is worked on, the lines of the strip 4 KiB ahead are asked for, into the second
// level and across the ends of blocks and heads. Without: 8.6 GB/s; a tile ahead, or one
// line of each coming page early: 11 (it misleads the hardware's prefetchers); into the
// first level: as fast in long runs, 20 % slower in runs of 64 KiB. Even plain reading
// drops to 12 GB/s in runs of 16 KiB, hence the order of tiles and heads. In the cache
// the arithmetic alone does 46, 32, 18 and 9.6 GB/s for 1, 2, 4 and 8 query heads a KV head.
//
// exp is 2^x with log2(e) folded into the query's scale (exp2_avx2.h).
#include <immintrin.h>

#include <utility>

#include "kernels/avx2/exp2_avx2.h"
#include "kernels/avx2/f16_avx2.h"
#include "kernels/decode_attention.h"

namespace fastdecode::kernels {
namespace {

constexpr int kLine = 64;  // bytes
constexpr int kTileTokens = 32;
constexpr int kValueStrip = 8;  // tokens
constexpr int kAheadBytes = 4096;
constexpr int kMaxAhead = kTileTokens / kLanes;  // strips

// Calls f<0>() .. f<N - 1>(): a loop whose index is a constant, so that an array of
// vectors that it indexes stays in registers.
#define FD_INLINE __attribute__((always_inline))
template <typename F, int... I>
FD_INLINE inline void UnrollOver(std::integer_sequence<int, I...>, F f) {
  (f.template operator()<I>(), ...);
}
template <int N, typename F>
FD_INLINE inline void Unroll(F f) {
  UnrollOver(std::make_integer_sequence<int, N>(), f);
}

// Asks for lines one after the other, as many as are worked on.
struct Prefetch {
  const char* at;
  // For kBytes at step `i` (counted in lanes) of a loop: whole lines, so rarer than every step where kBytes is less.
  template <int kBytes>
  FD_INLINE inline void ForBytes(int i) {
    constexpr int kSteps = kBytes >= kLine ? 1 : kLine / kBytes;
    if (i % (kSteps * kLanes) != 0) return;
    for (int bytes = 0; bytes < kBytes; bytes += kLine) {
      _mm_prefetch(at, _MM_HINT_T1);
      at += kLine;
    }
  }
};

// Lane j of the result is the sum of v[j].
inline __m256 SumEach(const __m256 v[kLanes]) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// Lanes hold [token][H]: combines the lanes of equal head, result in all of them.
template <int H, typename Op>
inline __m256 AcrossTokens(__m256 v, Op op) {
  if constexpr (H <= 4) v = op(v, _mm256_permute2f128_ps(v, v, 0x01));
  if constexpr (H <= 2) v = op(v, _mm256_shuffle_ps(v, v, 0x4e));
  if constexpr (H <= 1) v = op(v, _mm256_shuffle_ps(v, v, 0xb1));
  return v;
}

inline __m256 Max(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
inline __m256 Add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }

// scores [8][H] = keys [8, dim] . q [H, dim] for a strip of 8 tokens, of which the first
// `tokens` exist; the others' scores are -inf.
template <int H, int kDim, bool kPrefetch>
inline void ScoreStrip(const float* q, const uint16_t* keys, int head_dim, int tokens, float* scores,
                       const char* next_strip) {
  constexpr int T = kLanes / H;
  const int dim = kDim != 0 ? kDim : head_dim;
  Prefetch prefetch{next_strip};
  for (int t = 0; t < kLanes; t += T) {
    const uint16_t* row[T];
    Unroll<T>([&]<int i>() FD_INLINE { row[i] = keys + static_cast<int64_t>(t + i < tokens ? t + i : 0) * dim; });
    __m256 sum[kLanes];
    Unroll<kLanes>([&]<int i>() FD_INLINE { sum[i] = _mm256_setzero_ps(); });
    for (int d = 0; d < dim; d += kLanes) {
      if constexpr (kPrefetch) prefetch.ForBytes<T * kLanes * 2>(d);
      __m256 key[T];
      Unroll<T>([&]<int i>() FD_INLINE { key[i] = LoadF16(row[i] + d); });
      Unroll<H>([&]<int h>() FD_INLINE {
        const __m256 query = _mm256_loadu_ps(q + h * dim + d);
        Unroll<T>([&]<int i>() FD_INLINE { sum[i * H + h] = _mm256_fmadd_ps(key[i], query, sum[i * H + h]); });
      });
    }
    _mm256_storeu_ps(scores + t * H, SumEach(sum));
  }
  for (int i = tokens * H; i < kLanes * H; ++i) scores[i] = -__builtin_inff();
}

// One pass over a strip's values for C vectors of the head: acc [H, dim] += weights [token][H] * values.
template <int H, int C, bool kPrefetch>
inline void AddValues(const float* weights, const uint16_t* values, int64_t dim, int tokens, float* acc,
                      const char* next_strip) {
  __m256 sum[H * C];
  Unroll<H * C>([&]<int i>() FD_INLINE { sum[i] = _mm256_loadu_ps(acc + i / C * dim + i % C * kLanes); });
  Prefetch prefetch{next_strip};
  for (int t = 0; t < tokens; ++t) {
    if constexpr (kPrefetch) prefetch.ForBytes<C * kLanes * 2>(t * kLanes);
    __m256 value[C];
    Unroll<C>([&]<int c>() FD_INLINE { value[c] = LoadF16(values + t * dim + c * kLanes); });
    Unroll<H>([&]<int h>() FD_INLINE {
      const __m256 weight = _mm256_broadcast_ss(weights + t * H + h);
      Unroll<C>([&]<int c>() FD_INLINE { sum[h * C + c] = _mm256_fmadd_ps(weight, value[c], sum[h * C + c]); });
    });
  }
  Unroll<H * C>([&]<int i>() FD_INLINE { _mm256_storeu_ps(acc + i / C * dim + i % C * kLanes, sum[i]); });
}

// Softmax state of H heads between tiles, lanes [token][head].
struct Lanes {
  float max[kLanes];  // equal in the lanes of one head
  float sum[kLanes];  // the head's is their sum
};

struct Tile {
  const uint16_t* keys;    // [tokens, dim]
  const uint16_t* values;  // [tokens, dim]
  int tokens;
};

// scores become weights; the accumulators follow a maximum that has grown.
template <int H>
inline void Softmax(float* scores, int tokens, int dim, Lanes* lanes, float* acc) {
  const int end = (tokens + kLanes - 1) / kLanes * kLanes * H;
  const __m256 old_max = _mm256_loadu_ps(lanes->max);
  __m256 max = old_max;
  for (int i = 0; i < end; i += kLanes) max = _mm256_max_ps(_mm256_loadu_ps(scores + i), max);  // max where NaN
  max = AcrossTokens<H>(max, Max);
  __m256 sum = _mm256_loadu_ps(lanes->sum);
  if (_mm256_movemask_ps(_mm256_cmp_ps(max, old_max, _CMP_GT_OQ)) != 0) {
    const __m256 factor = Exp2(_mm256_sub_ps(old_max, max));
    sum = _mm256_mul_ps(sum, factor);
    float factors[kLanes];
    _mm256_storeu_ps(factors, factor);
    for (int h = 0; h < H; ++h) {
      const __m256 f = _mm256_broadcast_ss(factors + h);
      float* const row = acc + static_cast<int64_t>(h) * dim;
      for (int d = 0; d < dim; d += kLanes) _mm256_storeu_ps(row + d, _mm256_mul_ps(_mm256_loadu_ps(row + d), f));
    }
    _mm256_storeu_ps(lanes->max, max);
  }
  for (int i = 0; i < end; i += kLanes) {
    const __m256 weight = Exp2(_mm256_sub_ps(_mm256_loadu_ps(scores + i), max));
    _mm256_storeu_ps(scores + i, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  _mm256_storeu_ps(lanes->sum, sum);
}

// acc [H, dim] += weights * values of a strip, in as few passes as 8 accumulators allow,
// of nearly equal width.
template <int H, bool kPrefetch>
inline void AddValueStrip(const float* weights, const uint16_t* values, int dim, int tokens, float* acc,
                          const char* next_strip) {
  const int vectors = dim / kLanes;
  const int passes = (vectors * H + kLanes - 1) / kLanes;
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int width = (vectors - done + passes - pass - 1) / (passes - pass);
    const int first = done * kLanes;
    Unroll<kLanes / H>([&]<int i>() FD_INLINE {
      if (width != i + 1) return;
      AddValues<H, i + 1, kPrefetch>(weights, values + first, dim, tokens, acc + first,
                                     next_strip + int64_t{2} * first * tokens);
    });
    done += width;
  }
}

struct Scratch {
  float* q;       // [group, dim], scaled
  float* acc;     // [group, dim]
  float* scores;  // [group, kTileTokens], for each H heads [kTileTokens][H]
  Lanes* lanes;   // one for each H heads
};

// The group's heads by 8, then 4, 2, 1. visit(H as a constant, first head, index).
template <typename Visit>
inline void ForHeads(int group, Visit visit) {
  int head = 0;
  int index = 0;
  for (; head + 8 <= group; head += 8) visit.template operator()<8>(head, index++);
  if ((group & 4) != 0) {
    visit.template operator()<4>(head, index++);
    head += 4;
  }
  if ((group & 2) != 0) {
    visit.template operator()<2>(head, index++);
    head += 2;
  }
  if ((group & 1) != 0) visit.template operator()<1>(head, index);
}

void LoadQuery(const DecodeAttentionParams& p, int kv_head, const Scratch& s) {
  const __m256 scale = _mm256_set1_ps(p.scale * 1.44269504f);
  const int64_t elements = static_cast<int64_t>(p.group) * p.head_dim;
  const uint16_t* const q = p.q + kv_head * elements;
  for (int64_t i = 0; i < elements; i += kLanes) {
    _mm256_storeu_ps(s.q + i, _mm256_mul_ps(LoadF16(q + i), scale));
    _mm256_storeu_ps(s.acc + i, _mm256_setzero_ps());
  }
  ForHeads(p.group, [&]<int H>(int, int index) {
    _mm256_storeu_ps(s.lanes[index].max, _mm256_set1_ps(kLowest));
    _mm256_storeu_ps(s.lanes[index].sum, _mm256_setzero_ps());
  });
}

void StoreResult(const DecodeAttentionParams& p, int kv_head, const Scratch& s) {
  ForHeads(p.group, [&]<int H>(int first, int index) {
    float sums[kLanes];
    _mm256_storeu_ps(sums, AcrossTokens<H>(_mm256_loadu_ps(s.lanes[index].sum), Add));
    for (int h = 0; h < H; ++h) {
      const float* const acc = s.acc + static_cast<int64_t>(first + h) * p.head_dim;
      const int64_t head = static_cast<int64_t>(kv_head) * p.group + first + h;
      if (p.out != nullptr) {
        StoreRow(acc, sums[h], p.head_dim, p.out + head * p.head_dim);
        continue;
      }
      float* const partial = p.partial_acc + head * p.head_dim;
      for (int d = 0; d < p.head_dim; d += kLanes) _mm256_storeu_ps(partial + d, _mm256_loadu_ps(acc + d));
      p.partial_max[head] = s.lanes[index].max[h];
      p.partial_sum[head] = sums[h];
    }
  });
}

// The tile of `kv_head` that starts at `token`.
inline Tile TileAt(const DecodeAttentionParams& p, int kv_head, int token) {
  const int block_index = token / p.block_tokens;
  const int in_block = token - block_index * p.block_tokens;
  const uint16_t* const block =
      p.blocks + p.block_table[block_index] * BlockElements(p.num_kv_heads, p.block_tokens, p.head_dim);
  const int64_t row = static_cast<int64_t>(in_block) * p.head_dim;
  Tile tile;
  tile.keys = block + KeyOffset(kv_head, p.block_tokens, p.head_dim) + row;
  tile.values = block + ValueOffset(kv_head, p.block_tokens, p.head_dim) + row;
  tile.tokens = p.block_tokens - in_block < kTileTokens ? p.block_tokens - in_block : kTileTokens;
  if (p.token_end - token < tile.tokens) tile.tokens = p.token_end - token;
  return tile;
}

// Where strip `index` of a tile lies, or, counted on, of what is read after it. In bytes,
// so that nothing is computed outside of an array.
inline const char* StripAt(const uint16_t* rows, const uint16_t* after, int index, int strips, int64_t strip_bytes) {
  return index < strips ? reinterpret_cast<const char*>(rows) + index * strip_bytes
                        : reinterpret_cast<const char*>(after) + (index - strips) * strip_bytes;
}

// All heads of the group over one tile. `next_keys`: where the next tile's keys start.
template <int kDim>
inline void AttendTile(const DecodeAttentionParams& p, const Scratch& s, const Tile& tile, const uint16_t* next_keys) {
  const int dim = kDim != 0 ? kDim : p.head_dim;
  const int64_t strip_bytes = int64_t{kLanes} * dim * 2;
  const int strips = (tile.tokens + kLanes - 1) / kLanes;
  const int ahead = strip_bytes >= kAheadBytes               ? 1
                    : strip_bytes * kMaxAhead <= kAheadBytes ? kMaxAhead
                                                             : static_cast<int>(kAheadBytes / strip_bytes);
  for (int strip = 0; strip < strips; ++strip) {
    const char* const next = StripAt(tile.keys, tile.values, strip + ahead, strips, strip_bytes);
    const int first = strip * kLanes;
    ForHeads(p.group, [&]<int H>(int head, int index) FD_INLINE {
      const float* const q = s.q + static_cast<int64_t>(head) * dim;
      float* const scores = s.scores + head * kTileTokens + first * H;
      const uint16_t* const keys = tile.keys + first * dim;
      if (index == 0) {
        ScoreStrip<H, kDim, true>(q, keys, dim, tile.tokens - first, scores, next);
      } else {
        ScoreStrip<H, kDim, false>(q, keys, dim, tile.tokens - first, scores, next);
      }
    });
  }
  ForHeads(p.group, [&]<int H>(int head, int index) FD_INLINE {
    Softmax<H>(s.scores + head * kTileTokens, tile.tokens, dim, &s.lanes[index],
               s.acc + static_cast<int64_t>(head) * dim);
  });
  for (int first = 0; first < tile.tokens; first += kValueStrip) {
    const char* const next = StripAt(tile.values, next_keys, first / kLanes + ahead, strips, strip_bytes);
    const int tokens = tile.tokens - first < kValueStrip ? tile.tokens - first : kValueStrip;
    ForHeads(p.group, [&]<int H>(int head, int index) FD_INLINE {
      const float* const weights = s.scores + head * kTileTokens + first * H;
      float* const acc = s.acc + static_cast<int64_t>(head) * dim;
      const uint16_t* const values = tile.values + first * dim;
      if (index == 0) {
        AddValueStrip<H, true>(weights, values, dim, tokens, acc, next);
      } else {
        AddValueStrip<H, false>(weights, values, dim, tokens, acc, next);
      }
    });
  }
}

// What one KV head needs of the piece's scratch.
inline Scratch ScratchOf(const DecodeAttentionParams& p, int kv_head) {
  const int64_t heads = static_cast<int64_t>(p.kv_head_end - p.kv_head_begin) * p.group;
  const int64_t first = static_cast<int64_t>(kv_head - p.kv_head_begin) * p.group;
  float* const memory = static_cast<float*>(p.scratch);
  float* const scores = memory + 2 * heads * p.head_dim;
  Lanes* const lanes = reinterpret_cast<Lanes*>(scores + static_cast<int64_t>(p.group) * kTileTokens);
  return {memory + first * p.head_dim, memory + (heads + first) * p.head_dim, scores, lanes + first};
}

template <int kDim>
void Attend(const DecodeAttentionParams& p) {
  for (int kv_head = p.kv_head_begin; kv_head < p.kv_head_end; ++kv_head) LoadQuery(p, kv_head, ScratchOf(p, kv_head));
  Tile tile = TileAt(p, p.kv_head_begin, p.token_begin);
  for (int token = p.token_begin; token < p.token_end;) {
    const int after = token + tile.tokens;
    for (int kv_head = p.kv_head_begin; kv_head < p.kv_head_end; ++kv_head) {
      Tile next = tile;
      if (kv_head + 1 < p.kv_head_end) {
        next = TileAt(p, kv_head + 1, token);
      } else if (after < p.token_end) {
        next = TileAt(p, p.kv_head_begin, after);
      }
      AttendTile<kDim>(p, ScratchOf(p, kv_head), tile, next.keys);
      tile = next;
    }
    token = after;
  }
  for (int kv_head = p.kv_head_begin; kv_head < p.kv_head_end; ++kv_head)
    StoreResult(p, kv_head, ScratchOf(p, kv_head));
}

}  // namespace

void AttendF16Avx2(const DecodeAttentionParams& p) {
  switch (p.head_dim) {
    case 64:
      return Attend<64>(p);
    case 80:
      return Attend<80>(p);
    case 96:
      return Attend<96>(p);
    case 128:
      return Attend<128>(p);
    case 256:
      return Attend<256>(p);
    default:
      return Attend<0>(p);
  }
}

}  // namespace fastdecode::kernels
