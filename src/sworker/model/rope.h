// Rotary position embedding: the angles of every position, as Hugging Face's Llama
// computes them (modeling_rope_utils.py: default, linear, llama3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/config/model_config.h"

namespace fastdecode {

struct RopeTables {
  at::Tensor cos, sin;  // [max_context, head_dim / 2], f32
};

// Frequencies [head_dim / 2], f32.
at::Tensor RopeFrequencies(const RopeConfig& rope, int64_t head_dim);
// On the CPU.
RopeTables MakeRopeTables(const RopeConfig& rope, int64_t head_dim, int64_t max_context);

}  // namespace fastdecode
