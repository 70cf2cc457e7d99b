// The S-part of one layer and of the head, behind an interface with two
// implementations: cpu_layer.h (packed weights, fused loops, several threads) and
// torch_layer.h (libtorch's operators on any device).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "common/config/model_config.h"
#include "sworker/device/device_runtime.h"
#include "sworker/model/rope.h"
#include "sworker/model/weights.h"

namespace fastdecode {

// Shapes as in model.h.
class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  virtual at::Tensor AttentionIn(const at::Tensor& x, const at::Tensor& positions) const = 0;
  virtual at::Tensor AttentionOut(const at::Tensor& x, const at::Tensor& o) const = 0;
};

class OutputHead {
 public:
  virtual ~OutputHead() = default;
  virtual at::Tensor Logits(const at::Tensor& x) const = 0;
};

// Makes layers of one model. config, device and rope outlive what it makes; weights are
// moved or packed, and need not be kept.
class LayerFactory {
 public:
  virtual ~LayerFactory() = default;
  virtual std::unique_ptr<DecoderLayer> MakeLayer(const LayerWeights& weights) = 0;
  virtual std::unique_ptr<OutputHead> MakeHead(const at::Tensor& norm, const at::Tensor& weight) = 0;
};

std::unique_ptr<LayerFactory> MakeCpuLayerFactory(const ModelConfig& config, DeviceRuntime& device,
                                                  const RopeTables& rope);
// rope on the device.
std::unique_ptr<LayerFactory> MakeTorchLayerFactory(const ModelConfig& config, DeviceRuntime& device,
                                                    const RopeTables& rope);

}  // namespace fastdecode
