// Attention of new tokens over their sequence's cached keys and values.
//
// The work of a layer is cut into pieces: one sequence, a run of KV heads, a range of
// cached tokens. A call computes one piece for all query heads of those KV heads and for
// all query rows of the sequence, so that K and V are read once whatever their number. A
// sequence in one range ends in f16 rows; one in several leaves f32 partial results that a
// merge joins in the order of the ranges. Maximum and sum of the weights are kept apart,
// since their one number, the log-sum-exp max * ln(2) + ln(sum), loses digits where scores
// are large. Whoever cuts by the sequence's length alone gets bit-identical rows, whatever
// else runs.
//
// Plain pointers and the standard library only. No function here allocates, locks or keeps
// state; any number of threads may call them on disjoint outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"

namespace fastdecode::kernels {

inline constexpr int kMaxQueryRows = 256;

// What one model's attention is, in one layer.
struct AttentionOptions {
  int32_t group = 1;        // query heads of a KV head, any number from 1
  float scale = 0;          // multiplies q.k
  float soft_cap = 0;       // scores become cap * tanh(score / cap); 0: none
  int32_t window = 0;       // a row sees its own token and the window - 1 before it; 0: all
  int32_t sink_tokens = 0;  // and, with a window, the sequence's first tokens
  // [num_kv_heads * group] learned scores that take part in the sum of weights and have no value; null: none.
  const float* sink_logits = nullptr;
};

struct AttendParams {
  KvLayout layout;
  const KvCodec* codec = nullptr;
  AttentionOptions options;

  // Cache of one layer, 4-byte aligned.
  const std::byte* blocks = nullptr;      // block b starts at blocks + b * layout.block_bytes()
  const uint32_t* block_table = nullptr;  // ids of the sequence's blocks, in the order of its tokens

  // Query rows: row r is the token at first_position + r, whose key and value are cached; it sees no later one.
  const uint16_t* q = nullptr;  // f16, row r at q + r * q_stride: [num_kv_heads * group, head_dim]
  int64_t q_stride = 0;         // elements
  int32_t rows = 1;             // up to kMaxQueryRows
  int32_t first_position = 0;

  // The piece.
  int32_t kv_head_begin = 0;
  int32_t kv_head_end = 0;
  int32_t token_begin = 0;  // a multiple of kTileTokens
  int32_t token_end = 0;    // above token_begin

  // Result; only the piece's heads are written. Either out, normalised f16 rows as q, or, where
  // out is null, a partial result.
  uint16_t* out = nullptr;
  int64_t out_stride = 0;        // elements
  float* lse = nullptr;          // with out, unless null: [rows, heads] natural logarithm of the sum of exp(score)
  float* partial_acc = nullptr;  // [rows, heads, head_dim] sum of weight * v, weight = 2^(score * log2(e) - max)
  float* partial_max = nullptr;  // [rows, heads] of score * log2(e)
  float* partial_sum = nullptr;  // [rows, heads] of weights

  void* scratch = nullptr;  // AttendScratchBytes(...), 64-byte aligned, this call's own
};

// Joins the partial results of `num_ranges` ranges for query heads [head_begin, head_end) of
// all rows. Range r lies at partial_acc + r * rows * num_heads * head_dim, and so on.
struct MergeParams {
  int32_t num_ranges = 0;
  int32_t rows = 1;
  int32_t num_heads = 0;  // query heads of the sequence
  int32_t head_dim = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;
  const float* sink_logits = nullptr;
  const float* partial_acc = nullptr;
  const float* partial_max = nullptr;
  const float* partial_sum = nullptr;
  uint16_t* out = nullptr;
  int64_t out_stride = 0;
  float* lse = nullptr;
};

KvLayout MakeLayout(const KvCodec& codec, int32_t num_kv_heads, int32_t head_dim, int32_t block_tokens);

void Attend(const AttentionKernel& kernel, const AttendParams& params);
void Merge(const AttentionKernel& kernel, const MergeParams& params);

// Scratch of a call for `kv_heads` KV heads.
int64_t AttendScratchBytes(const KvCodec& codec, int32_t kv_heads, int32_t group, int32_t rows, int32_t head_dim);

// A row of keys or values as it comes in.
enum class RowType : uint8_t { kF16, kBf16, kF32 };

// Stores keys and values of tokens of one block, for KV heads [head_begin, head_end).
struct AppendParams {
  KvLayout layout;
  const KvCodec* codec = nullptr;
  RowType type = RowType::kF16;
  const void* k = nullptr;  // [tokens] rows of [num_kv_heads, head_dim] of `type`, as its elements are aligned
  const void* v = nullptr;  // the same
  int64_t row_stride = 0;   // elements
  int32_t tokens = 1;
  std::byte* block = nullptr;  // start of the block
  int32_t in_block = 0;        // where the first token goes
  int32_t head_begin = 0;
  int32_t head_end = 0;
};
// Returns how many elements were beyond the formats' range and were stored as its largest value.
int64_t Append(const AttentionKernel& kernel, const AppendParams& params);

}  // namespace fastdecode::kernels
