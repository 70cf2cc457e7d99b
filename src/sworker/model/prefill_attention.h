// Causal attention of whole prompts on the S-worker's own device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "common/base/model_shape.h"
#include "sworker/device/device_runtime.h"

namespace fastdecode {

// qkv [rows, qkv_width], the rows of several prompts one after the other; lengths: the
// rows of each, all positive. -> [rows, num_heads * head_dim]. Nothing of the size
// rows x rows is ever made.
at::Tensor CausalAttention(const at::Tensor& qkv, std::span<const int64_t> lengths, const AttentionShape& shape,
                           DeviceRuntime& device);

}  // namespace fastdecode
