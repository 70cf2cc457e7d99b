// A layer on the CPU, and its matrix products by themselves.
#pragma once

#include <memory>

#include "sworker/model/layer.h"
#include "sworker/model/sharded_linear.h"

namespace fastdecode {

// Packed, cut over the compute threads.
struct LayerProducts {
  LayerProducts(const LayerWeights& weights, const AttentionShape& shape, int num_shards);

  ShardedLinear qkv, o;
  ShardedLinear gate_up;  // a shard's columns of the gate, then those of up
  ShardedLinear down;
};

// norms: [hidden], in the compute dtype. What is passed by reference outlives the layer.
std::unique_ptr<DecoderLayer> MakeCpuLayer(const ModelConfig& config, DeviceRuntime& device, const RopeTables& rope,
                                           const at::Tensor& input_norm, const at::Tensor& post_norm,
                                           std::shared_ptr<const LayerProducts> products);

}  // namespace fastdecode
