// The S-part: everything of a Transformer with weights, cut where attention begins
// and ends. All calls come from work on a DeviceStream (see device_runtime.h) and
// leave their results on the device. No KV is kept here.
//
// `compute` below is the dtype of the S-part: f32, bf16 or f16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "common/config/config.h"
#include "sworker/device/device_runtime.h"

namespace fastdecode {

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual at::ScalarType compute_dtype() const = 0;
  virtual int64_t weight_bytes() const = 0;

  // ids [rows] i64 -> [rows, hidden], compute.
  virtual at::Tensor Embed(const at::Tensor& ids) const = 0;
  // Norm, QKV projection, rope. x [rows, hidden], positions [rows] i64
  // -> [rows, (num_heads + 2 num_kv_heads) * head_dim], compute: Q, K, V side by side in a row.
  virtual at::Tensor AttentionIn(int layer, const at::Tensor& x, const at::Tensor& positions) const = 0;
  // Output projection, residual, norm, feed-forward, residual.
  // x [rows, hidden], o [rows, num_heads * head_dim], both compute -> [rows, hidden].
  virtual at::Tensor AttentionOut(int layer, const at::Tensor& x, const at::Tensor& o) const = 0;
  // Final norm and head. -> [rows, vocab], f32.
  virtual at::Tensor Logits(const at::Tensor& x) const = 0;
  // A prompt's own causal attention, for prefill. qkv as AttentionIn gives it, the rows
  // of several prompts one after the other, prompt i having lengths[i] rows
  // -> o [rows, num_heads * head_dim], compute.
  virtual at::Tensor PrefillAttention(const at::Tensor& qkv, std::span<const int64_t> lengths) const = 0;
};

// Loads a Hugging Face folder (model.safetensors or the sharded index) or makes random
// weights from `seed`. Logs progress. Errors: kNotFound, kDataLoss (cut short, lying
// offsets, wrong shape, missing tensor), each naming file and tensor.
Result<std::unique_ptr<Model>> LoadModel(const Config& config, DeviceRuntime& device);

}  // namespace fastdecode
