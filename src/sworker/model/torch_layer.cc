// A layer of libtorch's own operators, on any device: what CUDA runs, and the reference
// that the CPU's layer is tested against.
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

#include <optional>
#include <utility>

#include "sworker/model/layer.h"

namespace fastdecode {
namespace {

struct Linear {
  Linear(const at::Tensor& w, const at::Tensor& b, at::Device device) : weight(w.to(device)) {
    if (b.defined()) bias = b.to(device);
  }
  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }

  at::Tensor weight;
  std::optional<at::Tensor> bias;
};

at::Tensor CatIfDefined(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() ? at::cat({a, b}) : at::Tensor();
}

class TorchLayer final : public DecoderLayer {
 public:
  TorchLayer(const ModelConfig& config, DeviceRuntime& device, const RopeTables& rope, const LayerWeights& w)
      : shape_(config.attention),
        eps_(config.rms_norm_eps),
        rope_(rope),
        input_norm_(w.input_norm.to(device.device())),
        post_norm_(w.post_norm.to(device.device())),
        qkv_(w.qkv, w.qkv_bias, device.device()),
        o_(w.o, w.o_bias, device.device()),
        gate_up_(at::cat({w.gate, w.up}), CatIfDefined(w.gate_bias, w.up_bias), device.device()),
        down_(w.down, w.down_bias, device.device()) {}

  at::Tensor AttentionIn(const at::Tensor& x, const at::Tensor& positions) const override {
    const int64_t half = shape_.head_dim / 2, heads = int64_t{shape_.num_heads} + shape_.num_kv_heads;
    at::Tensor qkv = qkv_(at::rms_norm(x, x.size(1), input_norm_, eps_));
    const at::Tensor cos = at::index_select(rope_.cos, 0, positions).unsqueeze(1);  // [rows, 1, half]
    const at::Tensor sin = at::index_select(rope_.sin, 0, positions).unsqueeze(1);
    // Q and K: [rows, heads, 2, half]; element i turns with element i + half.
    const at::Tensor pairs = qkv.narrow(1, 0, heads * 2 * half).view({x.size(0), heads, 2, half});
    const at::Tensor wide = pairs.to(at::kFloat);
    const at::Tensor low = wide.select(2, 0), high = wide.select(2, 1);
    const at::Tensor turned_low = low * cos - high * sin, turned_high = high * cos + low * sin;
    pairs.select(2, 0).copy_(turned_low);
    pairs.select(2, 1).copy_(turned_high);
    return qkv;
  }

  at::Tensor AttentionOut(const at::Tensor& x, const at::Tensor& o) const override {
    const at::Tensor middle = x + o_(o);
    const at::Tensor both = gate_up_(at::rms_norm(middle, middle.size(1), post_norm_, eps_));
    const int64_t inner = both.size(1) / 2;
    return middle + down_(at::silu(both.narrow(1, 0, inner)) * both.narrow(1, inner, inner));
  }

 private:
  const AttentionShape shape_;
  const double eps_;
  const RopeTables& rope_;
  const at::Tensor input_norm_, post_norm_;
  const Linear qkv_, o_, gate_up_, down_;
};

class TorchHead final : public OutputHead {
 public:
  TorchHead(const ModelConfig& config, DeviceRuntime& device, const at::Tensor& norm, const at::Tensor& weight)
      : eps_(config.rms_norm_eps), norm_(norm.to(device.device())), head_(weight, at::Tensor(), device.device()) {}
  at::Tensor Logits(const at::Tensor& x) const override {
    return head_(at::rms_norm(x, x.size(1), norm_, eps_)).to(at::kFloat);
  }

 private:
  const double eps_;
  const at::Tensor norm_;
  const Linear head_;
};

class TorchLayerFactory final : public LayerFactory {
 public:
  TorchLayerFactory(const ModelConfig& config, DeviceRuntime& device, const RopeTables& rope)
      : config_(config), device_(device), rope_(rope) {}
  std::unique_ptr<DecoderLayer> MakeLayer(const LayerWeights& weights) override {
    return std::make_unique<TorchLayer>(config_, device_, rope_, weights);
  }
  std::unique_ptr<OutputHead> MakeHead(const at::Tensor& norm, const at::Tensor& weight) override {
    return std::make_unique<TorchHead>(config_, device_, norm, weight);
  }

 private:
  const ModelConfig& config_;
  DeviceRuntime& device_;
  const RopeTables& rope_;
};

}  // namespace

std::unique_ptr<LayerFactory> MakeTorchLayerFactory(const ModelConfig& config, DeviceRuntime& device,
                                                    const RopeTables& rope) {
  return std::make_unique<TorchLayerFactory>(config, device, rope);
}

}  // namespace fastdecode
