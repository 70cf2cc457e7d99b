// What AMX has of its own: f16 keys and values. The rest of its kernel is AVX-512's.
#pragma once

#include "kernels/attention_kernel.h"

namespace fastdecode::kernels {

struct AmxOps {
  int64_t (*packed_floats)(int32_t vectors, int32_t head_dim);
  void (*load_query)(const QueryArgs& args);
  void (*scores)(const ScoreArgs& args);
  void (*add)(const ValueArgs& args);
  void (*enter)(int32_t vectors);
  void (*leave)(int32_t vectors);
};

extern const AmxOps kAmxOps;
extern const AttentionKernel kAvx512Kernel;

}  // namespace fastdecode::kernels
