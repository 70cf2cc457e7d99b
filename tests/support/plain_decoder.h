// A decode loop as plain as can be: the Model's S-part, and attention over a cache kept
// here, a list of f16 rows a sequence, without pages, wire or workers. It shows what the
// model alone gives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "sworker/device/device_runtime.h"
#include "sworker/model/model.h"

namespace fastdecode::testing {

// Owner thread only.
class PlainDecoder {
 public:
  // round: whether Q, K, V and O pass through f16, as they do on the wire and in the cache.
  PlainDecoder(const Model& model, DeviceRuntime& device, bool round) : model_(model), device_(device), round_(round) {}

  // Starts over with these prompts. -> logits of each one's last row, [prompts, vocab], f32.
  at::Tensor Prefill(std::span<const std::vector<int32_t>> prompts);
  // Feeds one token to each of these sequences (indices of prompts). -> logits
  // [sequences.size(), vocab], f32.
  at::Tensor Decode(std::span<const int64_t> sequences, std::span<const int32_t> tokens);

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<at::Tensor> k, v;  // a layer: [length, num_kv_heads, head_dim]
  };

  void Append(Sequence& sequence, size_t layer, const at::Tensor& qkv_rows);
  at::Tensor Attend(const Sequence& sequence, size_t layer, const at::Tensor& qkv_row) const;
  at::Tensor RunPrefill(std::span<const std::vector<int32_t>> prompts);
  at::Tensor RunDecode(std::span<const int64_t> sequences, std::span<const int32_t> tokens);
  at::Tensor OnStream(const std::function<at::Tensor()>& work);

  const Model& model_;
  DeviceRuntime& device_;
  const bool round_;
  std::vector<Sequence> sequences_;
};

}  // namespace fastdecode::testing
