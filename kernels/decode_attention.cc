// The walk that all kernels share: over tiles of a sequence, over the KV heads of a piece.
//
// Tiles are visited in the order in which they lie in memory: block by block, in it all KV
// heads of the piece, so that a piece is read in long runs. While a tile is worked on, what comes
// next along that order is asked for, across the ends of runs (simd/prefetch.h), where the
// memory prefetcher of a CPU loses its way.
#include "kernels/decode_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/quantise.h"
#include "kernels/simd/prefetch.h"

namespace fastdecode::kernels {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr double kLn2 = 0.693147180559945309;

int64_t AlignedFloats(int64_t floats) { return (floats + 15) / 16 * 16; }

// What one KV head needs of a call's scratch, in floats.
struct HeadScratch {
  int64_t packed;
  int64_t acc;
  int64_t sums;
  int64_t max;
  int64_t total() const { return packed + acc + sums + max; }
};
HeadScratch ScratchOfHead(const KeyOps& keys, int32_t vectors, int32_t head_dim) {
  return {AlignedFloats(keys.packed_floats(vectors, head_dim)), int64_t{vectors} * PaddedDim(head_dim),
          int64_t{vectors} * kSumLanes, AlignedFloats(vectors)};
}

class Piece {
 public:
  Piece(const AttentionKernel& kernel, const AttendParams& p)
      : kernel_(kernel),
        p_(p),
        vectors_(p.rows * p.options.group),
        padded_dim_(PaddedDim(p.layout.head_dim)),
        sizes_(ScratchOfHead(p.codec->keys, vectors_, p.layout.head_dim)),
        heads_(static_cast<float*>(p.scratch)),
        scores_(heads_ + (p.kv_head_end - p.kv_head_begin) * sizes_.total()),
        masks_(reinterpret_cast<uint32_t*>(scores_ + int64_t{vectors_} * kTileTokens)) {}

  void Run() {
    Prefetcher::Begin(RunOf(p_.kv_head_begin, p_.token_begin, EndInBlock(p_.token_begin)));
    for (int32_t head = p_.kv_head_begin; head < p_.kv_head_end; ++head) Begin(head);
    if (kernel_.enter != nullptr) kernel_.enter(vectors_);
    for (int32_t begin = p_.token_begin; begin < p_.token_end;) {
      const int32_t end = EndInBlock(begin);
      for (int32_t head = p_.kv_head_begin; head < p_.kv_head_end; ++head) {
        for (int32_t token = begin; token < end; token += kTileTokens) {
          if (MakeMasks(token)) AttendTile(head, token, begin, end);
        }
      }
      begin = end;
    }
    if (kernel_.leave != nullptr) kernel_.leave(vectors_);
    for (int32_t head = p_.kv_head_begin; head < p_.kv_head_end; ++head) End(head);
  }

 private:
  struct Head {
    float* packed;
    float* acc;
    float* sums;
    float* max;
  };
  Head Of(int32_t kv_head) const {
    float* const at = heads_ + (kv_head - p_.kv_head_begin) * sizes_.total();
    return {at, at + sizes_.packed, at + sizes_.packed + sizes_.acc, at + sizes_.packed + sizes_.acc + sizes_.sums};
  }

  // Of the tokens from `begin` on, those of its block.
  int32_t EndInBlock(int32_t begin) const {
    return std::min((begin / p_.layout.block_tokens + 1) * p_.layout.block_tokens, p_.token_end);
  }

  void Begin(int32_t kv_head) const {
    const Head head = Of(kv_head);
    const int32_t dim = p_.layout.head_dim;
    p_.codec->keys.load_query({p_.q + int64_t{kv_head} * p_.options.group * dim, p_.q_stride, p_.rows, p_.options.group,
                               dim, p_.options.scale * kLog2E, head.packed});
    std::fill_n(head.acc, sizes_.acc, 0.0f);
    std::fill_n(head.sums, sizes_.sums, 0.0f);
    std::fill_n(head.max, vectors_, kLowest);
  }

  // Which of the tile's tokens each query row sees; false: none of them sees any.
  bool MakeMasks(int32_t token) {
    const auto bits = [&](int64_t begin, int64_t end) {  // tokens begin .. end - 1 of the tile
      begin = std::max<int64_t>(begin - token, 0);
      end = std::min<int64_t>(std::min<int64_t>(end, p_.token_end) - token, kTileTokens);
      if (begin >= end) return 0u;
      const uint32_t below_end = end == kTileTokens ? ~0u : (1u << end) - 1;
      return below_end & ~((1u << begin) - 1);
    };
    uint32_t any = 0;
    for (int32_t r = 0; r < p_.rows; ++r) {
      const int64_t end = int64_t{p_.first_position} + r + 1;
      const int64_t begin = p_.options.window > 0 ? end - p_.options.window : 0;
      masks_[r] = bits(begin, end);
      if (begin > 0) masks_[r] |= bits(0, std::min<int64_t>(p_.options.sink_tokens, end));
      any |= masks_[r];
    }
    return any != 0;
  }

  const std::byte* TileAt(int32_t kv_head, int32_t token) const {
    const int32_t block = token / p_.layout.block_tokens;
    return p_.blocks + p_.block_table[block] * p_.layout.block_bytes() +
           p_.layout.TileOffset(kv_head, token - block * p_.layout.block_tokens);
  }

  // The run of memory that holds the tile of tokens begin .. end - 1 of a block: all heads of a whole block, else the
  // head's tokens.
  Ahead RunOf(int32_t kv_head, int32_t begin, int32_t end) const {
    const int32_t block = p_.layout.block_tokens;
    const bool whole = begin % block == 0 && end % block == 0;
    Ahead run;
    run.begin = TileAt(whole ? p_.kv_head_begin : kv_head, begin);
    run.bytes = whole ? (p_.kv_head_end - p_.kv_head_begin) * p_.layout.head_bytes()
                      : (end - begin + kTileTokens - 1) / kTileTokens * p_.layout.tile_bytes();
    run.next = !whole && kv_head + 1 < p_.kv_head_end ? TileAt(kv_head + 1, begin)
               : end < p_.token_end                   ? TileAt(p_.kv_head_begin, end)
                                                      : nullptr;
    return run;
  }

  // Of a block's tokens begin .. end - 1.
  void AttendTile(int32_t kv_head, int32_t token, int32_t begin, int32_t end_token) const {
    const Head head = Of(kv_head);
    const int32_t dim = p_.layout.head_dim;
    const std::byte* const tile = TileAt(kv_head, token);
    const std::byte* const values = tile + p_.layout.key_tile_bytes;
    Ahead run = RunOf(kv_head, begin, end_token);
    const auto ahead_of = [&](const std::byte* at) {
      run.at = at - run.begin;
      return run;
    };
    p_.codec->keys.scores({head.packed, vectors_, dim, tile, scores_, ahead_of(tile)});
    const float cap = p_.options.soft_cap * kLog2E;
    for (int32_t r = 0; r < p_.rows; ++r) {
      const int64_t first = int64_t{r} * p_.options.group;
      kernel_.softmax({scores_ + first * kTileTokens, p_.options.group, masks_[r], cap, head.max + first,
                       head.sums + first * kSumLanes, head.acc + first * padded_dim_, padded_dim_});
    }
    const int32_t tokens = std::min(p_.token_end - token, kTileTokens);
    p_.codec->values.add({scores_, vectors_, dim, tokens, values, head.acc, ahead_of(values)});
  }

  void End(int32_t kv_head) const {
    const Head head = Of(kv_head);
    const int32_t dim = p_.layout.head_dim;
    const int32_t num_heads = p_.layout.num_kv_heads * p_.options.group;
    for (int32_t vector = 0; vector < vectors_; ++vector) {
      const int32_t row = vector / p_.options.group;
      const int32_t q_head = kv_head * p_.options.group + vector % p_.options.group;
      float* const acc = head.acc + int64_t{vector} * padded_dim_;
      float sum = 0;
      for (int i = 0; i < kSumLanes; ++i) sum += head.sums[int64_t{vector} * kSumLanes + i];
      const int64_t index = int64_t{row} * num_heads + q_head;
      if (p_.out != nullptr) {
        Finish(kernel_, {acc, head.max[vector], sum, dim, q_head, p_.options.sink_logits},
               p_.out + row * p_.out_stride + int64_t{q_head} * dim, p_.lse == nullptr ? nullptr : p_.lse + index);
        continue;
      }
      std::copy_n(acc, dim, p_.partial_acc + index * dim);
      p_.partial_max[index] = head.max[vector];
      p_.partial_sum[index] = sum;
    }
  }

 public:
  struct Sums {
    float* acc;
    float max;
    float sum;
    int32_t head_dim;
    int32_t q_head;
    const float* sink_logits;
  };
  // The row and its log-sum-exp out of sums over the whole context.
  static void Finish(const AttentionKernel& kernel, const Sums& s, uint16_t* out, float* lse) {
    double max = s.max;
    double sum = s.sum;
    if (s.sink_logits != nullptr) {  // a term of the sum without a value
      const double sink = double{s.sink_logits[s.q_head]} * double{kLog2E};
      const double grown = std::max(max, sink);
      // The accumulator stays relative to s.max: the divisor takes the difference.
      sum += std::exp2(sink - max);
      if (!std::isfinite(sum)) {  // the sink outweighs everything
        std::fill_n(s.acc, s.head_dim, 0.0f);
        sum = 1;
        max = grown;
      }
    }
    kernel.store_row(s.acc, static_cast<float>(sum), s.head_dim, out);
    if (lse != nullptr) *lse = static_cast<float>((max + std::log2(sum)) * kLn2);
  }

 private:
  const AttentionKernel& kernel_;
  const AttendParams& p_;
  const int32_t vectors_;
  const int32_t padded_dim_;
  const HeadScratch sizes_;
  float* const heads_;
  float* const scores_;
  uint32_t* const masks_;
};

}  // namespace

KvLayout MakeLayout(const KvCodec& codec, int32_t num_kv_heads, int32_t head_dim, int32_t block_tokens) {
  return {num_kv_heads, head_dim, block_tokens, codec.keys.tile_bytes(head_dim), codec.values.tile_bytes(head_dim)};
}

int64_t AttendScratchBytes(const KvCodec& codec, int32_t kv_heads, int32_t group, int32_t rows, int32_t head_dim) {
  const int32_t vectors = group * rows;
  const int64_t floats = kv_heads * ScratchOfHead(codec.keys, vectors, head_dim).total() +
                         int64_t{vectors} * kTileTokens + AlignedFloats(rows);
  return floats * int64_t{sizeof(float)};
}

void Attend(const AttentionKernel& kernel, const AttendParams& params) { Piece(kernel, params).Run(); }

void Merge(const AttentionKernel& kernel, const MergeParams& p) {
  alignas(64) float acc[kMaxHeadDim];
  const int64_t range_heads = int64_t{p.rows} * p.num_heads;
  for (int32_t row = 0; row < p.rows; ++row) {
    for (int32_t head = p.head_begin; head < p.head_end; ++head) {
      const int64_t index = int64_t{row} * p.num_heads + head;
      float max = kLowest;
      for (int32_t r = 0; r < p.num_ranges; ++r) max = std::max(max, p.partial_max[r * range_heads + index]);
      std::fill_n(acc, p.head_dim, 0.0f);
      float sum = 0;
      for (int32_t r = 0; r < p.num_ranges; ++r) {
        const int64_t at = r * range_heads + index;
        const float factor = std::exp2(p.partial_max[at] - max);
        sum += factor * p.partial_sum[at];
        kernel.add_scaled(acc, p.partial_acc + at * p.head_dim, factor, p.head_dim);
      }
      Piece::Finish(kernel, {acc, max, sum, p.head_dim, head, p.sink_logits},
                    p.out + row * p.out_stride + int64_t{head} * p.head_dim,
                    p.lse == nullptr ? nullptr : p.lse + index);
    }
  }
}

// Asks for the tile of the first new token: a key's elements go to nearly all of its lines, one miss each, and the
// attention that follows reads them all.
static void FetchTile(const AppendParams& p, int32_t head) {
  const std::byte* const tile = p.block + p.layout.TileOffset(head, p.in_block);
  for (int64_t at = 0; at < p.layout.tile_bytes(); at += kLine) __builtin_prefetch(tile + at, 0, 2);
}

int64_t Append(const AttentionKernel& kernel, const AppendParams& p) {
  alignas(64) float row[kMaxHeadDim];
  const int32_t dim = p.layout.head_dim;
  const auto widen = [&](const void* rows, int64_t from) {
    if (p.type == RowType::kF16) {
      kernel.widen_f16(static_cast<const uint16_t*>(rows) + from, dim, row);
    } else if (p.type == RowType::kBf16) {
      for (int32_t d = 0; d < dim; ++d) row[d] = Bf16ToFloat(static_cast<const uint16_t*>(rows)[from + d]);
    } else {
      std::copy_n(static_cast<const float*>(rows) + from, dim, row);
    }
  };
  int64_t beyond = 0;
  FetchTile(p, p.head_begin);
  for (int32_t head = p.head_begin; head < p.head_end; ++head) {
    if (head + 1 < p.head_end) FetchTile(p, head + 1);
    for (int32_t t = 0; t < p.tokens; ++t) {
      const int32_t in_block = p.in_block + t;
      std::byte* const tile = p.block + p.layout.TileOffset(head, in_block);
      const int64_t from = t * p.row_stride + int64_t{head} * dim;
      widen(p.k, from);
      beyond += p.codec->keys.store(row, dim, in_block % kTileTokens, tile);
      widen(p.v, from);
      beyond += p.codec->values.store(row, dim, in_block % kTileTokens, tile + p.layout.key_tile_bytes);
    }
  }
  return beyond;
}

}  // namespace fastdecode::kernels
