// Attention of one new token over its sequence's cached keys and values.
//
// The work of a layer is cut into pieces: one sequence, a run of KV heads, a range
// of cached tokens. A kernel computes one piece for all query heads of those KV
// heads, so that K and V are read once whatever the group size. A sequence in one
// range ends in f16 rows; one in several leaves f32 partial results that a merge joins
// in the order of the ranges. Maximum and sum of the weights are kept apart, since
// their one number, the log-sum-exp max * ln(2) + ln(sum), loses digits where scores
// are large. Whoever cuts by the sequence's length alone gets bit-identical rows,
// whatever else runs.
//
// Storage of one block in one layer: [num_kv_heads][K|V][block_tokens][head_dim],
// f16: (block, head) is one contiguous run, first the keys, then the values.
//
// Plain pointers and the standard library only. No function here allocates, locks
// or keeps state; any number of threads may call them on disjoint outputs.
#pragma once

#include <cstdint>

namespace fastdecode::kernels {

inline constexpr int kMaxHeadDim = 256;  // head_dim is a multiple of 8 up to this

struct DecodeAttentionParams {
  // Shape.
  int32_t num_kv_heads = 0;
  int32_t group = 0;         // query heads of a KV head, any number from 1
  int32_t head_dim = 0;      // multiple of 8, at most kMaxHeadDim
  int32_t block_tokens = 0;  // tokens of a block, any number from 1
  float scale = 0;           // multiplies q.k

  // Cache of one layer. Any alignment that suits f16.
  const uint16_t* blocks = nullptr;       // block b starts at blocks + b * BlockElements(...)
  const uint32_t* block_table = nullptr;  // ids of the sequence's blocks, in the order of its tokens

  // Query: [num_kv_heads * group, head_dim] f16, the query heads of a KV head side by side.
  const uint16_t* q = nullptr;

  // The piece.
  int32_t kv_head_begin = 0;
  int32_t kv_head_end = 0;
  int32_t token_begin = 0;  // a multiple of block_tokens
  int32_t token_end = 0;    // above token_begin

  // Result, indexed by query head 0 .. num_kv_heads * group - 1; only the piece's heads
  // are written. Either out, normalised f16 rows [heads, head_dim]; or, where out is
  // null, a partial result.
  uint16_t* out = nullptr;
  float* partial_acc = nullptr;  // [heads, head_dim] sum of weight * v, weight = 2^(score * log2(e) - max)
  float* partial_max = nullptr;  // [heads] of score * log2(e)
  float* partial_sum = nullptr;  // [heads] of weights

  void* scratch = nullptr;  // DecodeAttentionScratchBytes(KV heads, group, head_dim), 64-byte aligned, this call's own
};

// Joins the partial results of `num_ranges` ranges for query heads
// [head_begin, head_end). Range r lies at partial_acc + r * num_heads * head_dim,
// partial_max + r * num_heads and partial_sum + r * num_heads.
struct MergeParams {
  int32_t num_ranges = 0;
  int32_t num_heads = 0;  // query heads of the sequence
  int32_t head_dim = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;
  const float* partial_acc = nullptr;
  const float* partial_max = nullptr;
  const float* partial_sum = nullptr;
  uint16_t* out = nullptr;  // [num_heads, head_dim] f16
};

// f16 elements of one block in one layer.
inline int64_t BlockElements(int32_t num_kv_heads, int32_t block_tokens, int32_t head_dim) {
  return int64_t{2} * num_kv_heads * block_tokens * head_dim;
}

// Offsets in elements within a block of a head's first key and first value.
inline int64_t KeyOffset(int32_t kv_head, int32_t block_tokens, int32_t head_dim) {
  return int64_t{2} * kv_head * block_tokens * head_dim;
}
inline int64_t ValueOffset(int32_t kv_head, int32_t block_tokens, int32_t head_dim) {
  return KeyOffset(kv_head, block_tokens, head_dim) + int64_t{block_tokens} * head_dim;
}

// Scratch of a call for `kv_heads` KV heads, enough for every implementation: for each
// query head q and the accumulator in f32, the state of the softmax and the scores of a
// tile of 32 tokens.
inline int64_t DecodeAttentionScratchBytes(int32_t kv_heads, int32_t group, int32_t head_dim) {
  return int64_t{kv_heads} * group * (2 * int64_t{head_dim} + 32 + 16) * int64_t{sizeof(float)};
}

}  // namespace fastdecode::kernels
