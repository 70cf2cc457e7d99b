// A kernel: what one instruction set does for decode attention.
//
// The walk over a sequence's tiles, masks, states and partial results are the same for
// all and live in decode_attention.cc; a kernel supplies the arithmetic on one tile. What
// it does with keys and with values is a table entry for each format, so keys and values
// may differ in theirs, and a format of a user's own (docs/kv_formats.md) is two structs.
//
// Plain pointers and the standard library only. No function here allocates, locks or keeps
// state; any number of threads may call them on disjoint outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/kv_format.h"

namespace fastdecode::kernels {

inline constexpr float kLowest = -3.4028234663852886e38f;  // where a maximum starts; finite, so that differences are
inline constexpr int kSumLanes = 16;

// What is read in one go, and of it the place that is being read: while a tile is worked on, lines that
// follow are asked for (kernels/simd/prefetch.h).
struct Ahead {
  const std::byte* begin = nullptr;
  int64_t bytes = 0;
  const std::byte* next = nullptr;  // where the run after it begins; null: it is the last
  int64_t at = 0;
};

// Query vectors of one KV head: group heads of each of `rows` query rows, vector r * group + g.
struct QueryArgs {
  const uint16_t* q;   // f16; row r's first head of the group at q + r * row_stride
  int64_t row_stride;  // elements
  int32_t rows;
  int32_t group;
  int32_t head_dim;
  float scale;  // multiplies q
  float* packed;
};

struct ScoreArgs {
  const float* packed;  // as LoadQuery left it
  int32_t vectors;
  int32_t head_dim;
  const std::byte* tile;
  float* scores;  // [vectors][kTileTokens], all lanes written, those of absent tokens with anything
  Ahead ahead;
};

struct ValueArgs {
  const float* weights;  // [vectors][kTileTokens], 0 where masked
  int32_t vectors;
  int32_t head_dim;
  int32_t tokens;  // that exist, from the tile's first on
  const std::byte* tile;
  float* acc;  // [vectors][PaddedDim(head_dim)] += weights * values
  Ahead ahead;
};

struct SoftmaxArgs {
  float* scores;  // [vectors][kTileTokens], of score * log2(e); become weights 2^(score - max), 0 where masked
  int32_t vectors;
  uint32_t mask;   // bit t: token t is seen
  float soft_cap;  // of score * log2(e): score becomes cap * tanh(score / cap); 0: none
  float* max;      // [vectors]
  float* sums;     // [vectors][kSumLanes], their sum is the sum of weights
  float* acc;      // [vectors][padded_dim], follows a maximum that has grown
  int32_t padded_dim;
};

// Keys of one format.
struct KeyOps {
  int64_t (*tile_bytes)(int32_t head_dim);
  // Stores a token's key of head_dim elements; returns how many were beyond the format's range (and are
  // stored as its largest value).
  int (*store)(const float* row, int32_t head_dim, int32_t token, std::byte* tile);
  int64_t (*packed_floats)(int32_t vectors, int32_t head_dim);
  void (*load_query)(const QueryArgs& args);
  void (*scores)(const ScoreArgs& args);
};

// Values of one format.
struct ValueOps {
  int64_t (*tile_bytes)(int32_t head_dim);
  int (*store)(const float* row, int32_t head_dim, int32_t token, std::byte* tile);
  void (*add)(const ValueArgs& args);
};

// What a cache holds. Keys and values are independent of each other.
struct KvCodec {
  std::string_view key_name;
  std::string_view value_name;
  KeyOps keys;
  ValueOps values;
};

struct AttentionKernel {
  std::string_view name;
  std::string_view description;  // one line for the log
  uint32_t features;             // CpuFeature bits that it needs
  KeyOps keys[kKvFormats];
  ValueOps values[kKvFormats];
  // Before the first and after the last tile of a call with `vectors` query vectors, on its thread; null: nothing.
  void (*enter)(int32_t vectors);
  void (*leave)(int32_t vectors);
  void (*softmax)(const SoftmaxArgs& args);
  void (*add_scaled)(float* acc, const float* x, float factor, int32_t count);          // acc += factor * x
  void (*store_row)(const float* acc, float divisor, int32_t head_dim, uint16_t* out);  // f16, acc / divisor
  void (*widen_f16)(const uint16_t* row, int32_t count, float* out);                    // exact
  void (*exp2)(const float* x, float* y, int64_t count);  // as softmax computes it, x <= 0; for its test
};

}  // namespace fastdecode::kernels
