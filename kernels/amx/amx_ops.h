// What AMX has of its own; the rest of its kernel is AVX-512's.
#pragma once

#include "kernels/attention_kernel.h"

namespace fastdecode::kernels {

// A format's keys and values.
struct AmxOps {
  int64_t (*packed_floats)(int32_t vectors, int32_t head_dim);
  void (*load_query)(const QueryArgs& args);
  void (*scores)(const ScoreArgs& args);
  void (*add)(const ValueArgs& args);
};

// From how many query vectors on they are faster than AVX-512's, which does what is below (docs/performance.md):
// where keys and values must be converted first, and where tiles are loaded as they lie in the cache, of which short
// heads have few to a set-up.
inline constexpr int kMinSplitVectors = 9;
inline constexpr int kMinDirectVectors = 4;
constexpr bool UsesTilesDirectly(int32_t vectors, int32_t head_dim) {
  return vectors >= (head_dim < 128 ? 6 : kMinDirectVectors);
}

extern const AmxOps kAmxF16Ops;
extern const AmxOps kAmxBf16Ops;

void EnterAmx(int32_t vectors);
void LeaveAmx(int32_t vectors);

extern const AttentionKernel kAvx512Kernel;

}  // namespace fastdecode::kernels
