// What S-worker and R-worker must agree on about a model: the R-part's shape.
#pragma once

#include <cstdint>

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

}  // namespace fastdecode
