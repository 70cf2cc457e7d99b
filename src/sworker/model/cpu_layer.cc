// A layer on the CPU. Weight rows are cut over the compute threads; each thread applies
// what follows a product to its own columns, where they lie in its cache, and writes
// them to their place in the result: the shares are never joined by a copy.
#include "sworker/model/cpu_layer.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>

#include <cstring>
#include <utility>

#include "sworker/model/cpu_elementwise.h"

namespace fastdecode {
namespace {

// Output features a shard's share is a multiple of, where nothing else asks for more: a
// whole number of oneDNN's blocks.
constexpr int64_t kGranule = 64;

at::Tensor Columns(const at::Tensor& x, const ShardedLinear& linear, int shard) {
  return x.narrow(1, linear.begin(shard), linear.width(shard));
}

template <typename Work>
void ForFloatOrBf16(at::ScalarType dtype, Work&& work) {
  if (dtype == at::kFloat) return work(float{});
  TORCH_CHECK(dtype == at::kBFloat16, "the CPU computes in f32 or bf16, not ", dtype);
  work(c10::BFloat16{});
}

// RMS norm of x's rows into a tensor of PaddedRows(rows) rows; those beyond are zero.
at::Tensor Norm(DeviceRuntime& device, const at::Tensor& x, const at::Tensor& weight, float eps) {
  const int64_t rows = x.size(0), hidden = x.size(1), padded = PaddedRows(rows), shards = device.num_shards();
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == weight.scalar_type() && hidden == weight.size(0),
              "a layer's input must be contiguous, of the compute dtype and ", weight.size(0), " wide");
  at::Tensor out = at::empty({padded, hidden}, x.options());
  if (padded > rows) out.narrow(0, rows, padded - rows).zero_();
  ForFloatOrBf16(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    const T* w = weight.const_data_ptr<T>();
    T* y = out.mutable_data_ptr<T>();
    device.ParallelShards([&](int shard) {
      for (int64_t row = rows * shard / shards; row < rows * (shard + 1) / shards; ++row) {
        RmsNormRow(in + row * hidden, w, y + row * hidden, hidden, eps);
      }
    });
  });
  return out;
}

at::Tensor PadRows(const at::Tensor& x) {
  const int64_t rows = x.size(0), padded = PaddedRows(rows);
  if (padded == rows) return x.contiguous();
  at::Tensor out = at::empty({padded, x.size(1)}, x.options());
  out.narrow(0, 0, rows).copy_(x);
  out.narrow(0, rows, padded - rows).zero_();
  return out;
}

class CpuLayer final : public DecoderLayer {
 public:
  CpuLayer(const ModelConfig& config, DeviceRuntime& device, const RopeTables& rope, const at::Tensor& input_norm,
           const at::Tensor& post_norm, std::shared_ptr<const LayerProducts> products)
      : shape_(config.attention),
        inner_(config.intermediate_size),
        eps_(static_cast<float>(config.rms_norm_eps)),
        device_(device),
        rope_(rope),
        input_norm_(input_norm),
        post_norm_(post_norm),
        products_(std::move(products)) {}

  at::Tensor AttentionIn(const at::Tensor& x, const at::Tensor& positions) const override {
    const int64_t rows = x.size(0);
    TORCH_CHECK(positions.scalar_type() == at::kLong && positions.is_contiguous() && positions.numel() == rows,
                "positions must be ", rows, " i64 numbers");
    const at::Tensor normed = Norm(device_, x, input_norm_, eps_);
    at::Tensor qkv;  // with one shard the product itself
    if (device_.num_shards() > 1) qkv = at::empty({rows, shape_.qkv_width()}, x.options());
    device_.ParallelShards([&](int shard) {
      if (products_->qkv.width(shard) == 0) return;
      const at::Tensor share = products_->qkv.RunShard(shard, normed);
      if (device_.num_shards() == 1) qkv = share.narrow(0, 0, rows);
      Rope(shard, share, positions, qkv);
    });
    return qkv;
  }

  at::Tensor AttentionOut(const at::Tensor& x, const at::Tensor& o) const override {
    const at::Tensor attended = PadRows(o);
    const at::Tensor middle = ProductPlus(products_->o, attended, x);
    const at::Tensor normed = Norm(device_, middle, post_norm_, eps_);
    const at::Tensor inner = at::empty({attended.size(0), inner_}, x.options());
    device_.ParallelShards([&](int shard) {
      const int64_t width = products_->gate_up.width(shard);
      if (width == 0) return;
      const at::Tensor both = products_->gate_up.RunShard(shard, normed);
      at::Tensor gate = both.narrow(1, 0, width), out = Columns(inner, products_->gate_up, shard);
      at::silu_(gate);
      at::mul_out(out, gate, both.narrow(1, width, width));
    });
    return ProductPlus(products_->down, inner, middle);
  }

 private:
  // x + in W^T + b, for x's rows. in has PaddedRows of them.
  at::Tensor ProductPlus(const ShardedLinear& linear, const at::Tensor& in, const at::Tensor& x) const {
    const at::Tensor result = at::empty(x.sizes(), x.options());
    device_.ParallelShards([&](int shard) {
      if (linear.width(shard) == 0) return;
      const at::Tensor share = linear.RunShard(shard, in).narrow(0, 0, x.size(0));
      at::Tensor out = Columns(result, linear, shard);
      at::add_out(out, Columns(x, linear, shard), share);
    });
    return result;
  }

  // A shard's heads from its product to qkv, Q's and K's rotated. qkv may be the product.
  void Rope(int shard, const at::Tensor& share, const at::Tensor& positions, const at::Tensor& qkv) const {
    const int64_t dim = shape_.head_dim, half = dim / 2, begin = products_->qkv.begin(shard),
                  width = products_->qkv.width(shard);
    const int64_t rotated = (int64_t{shape_.num_heads} + shape_.num_kv_heads) * dim;  // columns before V's
    const float* cos = rope_.cos.const_data_ptr<float>();
    const float* sin = rope_.sin.const_data_ptr<float>();
    const int64_t* position = positions.const_data_ptr<int64_t>();
    ForFloatOrBf16(qkv.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T* in = share.const_data_ptr<T>();
      T* out = qkv.mutable_data_ptr<T>();
      for (int64_t row = 0; row < qkv.size(0); ++row) {
        const int64_t at = position[row];
        TORCH_CHECK(at >= 0 && at < rope_.cos.size(0), "position ", at, " is outside the context of ",
                    rope_.cos.size(0));
        const T* from = in + row * width;
        T* to = out + row * shape_.qkv_width() + begin;
        for (int64_t c = 0; c < width; c += dim) {
          if (begin + c < rotated) {
            RopeHead(from + c, cos + at * half, sin + at * half, to + c, half);
          } else if (from != to) {
            std::memcpy(to + c, from + c, static_cast<size_t>(dim) * sizeof(T));
          }
        }
      }
    });
  }

  const AttentionShape shape_;
  const int64_t inner_;
  const float eps_;
  DeviceRuntime& device_;
  const RopeTables& rope_;
  const at::Tensor input_norm_, post_norm_;
  const std::shared_ptr<const LayerProducts> products_;
};

class CpuHead final : public OutputHead {
 public:
  CpuHead(const ModelConfig& config, DeviceRuntime& device, const at::Tensor& norm, const at::Tensor& weight)
      : eps_(static_cast<float>(config.rms_norm_eps)),
        device_(device),
        norm_(norm),
        head_({weight}, {at::Tensor()}, device.num_shards(), kGranule),
        vocab_(weight.size(0)) {}

  at::Tensor Logits(const at::Tensor& x) const override {
    const at::Tensor normed = Norm(device_, x, norm_, eps_);
    if (device_.num_shards() == 1) return head_.RunShard(0, normed).narrow(0, 0, x.size(0)).to(at::kFloat);
    const at::Tensor logits = at::empty({x.size(0), vocab_}, x.options().dtype(at::kFloat));
    device_.ParallelShards([&](int shard) {
      if (head_.width(shard) == 0) return;
      Columns(logits, head_, shard).copy_(head_.RunShard(shard, normed).narrow(0, 0, x.size(0)));
    });
    return logits;
  }

 private:
  const float eps_;
  DeviceRuntime& device_;
  const at::Tensor norm_;
  const ShardedLinear head_;
  const int64_t vocab_;
};

class CpuLayerFactory final : public LayerFactory {
 public:
  CpuLayerFactory(const ModelConfig& config, DeviceRuntime& device, const RopeTables& rope)
      : config_(config), device_(device), rope_(rope) {}
  std::unique_ptr<DecoderLayer> MakeLayer(const LayerWeights& weights) override {
    return MakeCpuLayer(config_, device_, rope_, weights.input_norm, weights.post_norm,
                        std::make_shared<const LayerProducts>(weights, config_.attention, device_.num_shards()));
  }
  std::unique_ptr<OutputHead> MakeHead(const at::Tensor& norm, const at::Tensor& weight) override {
    return std::make_unique<CpuHead>(config_, device_, norm, weight);
  }

 private:
  const ModelConfig& config_;
  DeviceRuntime& device_;
  const RopeTables& rope_;
};

}  // namespace

LayerProducts::LayerProducts(const LayerWeights& w, const AttentionShape& shape, int num_shards)
    : qkv({w.qkv}, {w.qkv_bias}, num_shards, shape.head_dim),
      o({w.o}, {w.o_bias}, num_shards, kGranule),
      gate_up({w.gate, w.up}, {w.gate_bias, w.up_bias}, num_shards, kGranule),
      down({w.down}, {w.down_bias}, num_shards, kGranule) {}

std::unique_ptr<DecoderLayer> MakeCpuLayer(const ModelConfig& config, DeviceRuntime& device, const RopeTables& rope,
                                           const at::Tensor& input_norm, const at::Tensor& post_norm,
                                           std::shared_ptr<const LayerProducts> products) {
  return std::make_unique<CpuLayer>(config, device, rope, input_norm, post_norm, std::move(products));
}

std::unique_ptr<LayerFactory> MakeCpuLayerFactory(const ModelConfig& config, DeviceRuntime& device,
                                                  const RopeTables& rope) {
  return std::make_unique<CpuLayerFactory>(config, device, rope);
}

}  // namespace fastdecode
