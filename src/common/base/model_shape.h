// What S-worker and R-worker must agree on about a model: the R-part's shape.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

struct AttentionShape {
  int32_t num_layers = 0;
  int32_t num_heads = 0;     // query heads
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // multiple of 8, at most 256

  int64_t q_width() const { return int64_t{num_heads} * head_dim; }      // elements of a Q or O row
  int64_t kv_width() const { return int64_t{num_kv_heads} * head_dim; }  // elements of a K or V row
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }       // elements of a row on the wire
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxLayers = 1024;

// kInvalidArgument: a number out of bounds, or query heads that are no multiple of the KV
// heads. kUnimplemented: a head_dim that the kernels do not have.
Status CheckShape(const AttentionShape& shape);

// "2 layers, 32 heads, 32 KV heads, head_dim 128".
std::string Describe(const AttentionShape& shape);

// The short form that flags and configs use: layers x query heads x KV heads x head_dim,
// as in "2x32x32x128".
std::string FormatShape(const AttentionShape& shape);
// kInvalidArgument: not of that form, or a shape that CheckShape refuses.
Result<AttentionShape> ParseShape(const std::string& text);

}  // namespace fastdecode
