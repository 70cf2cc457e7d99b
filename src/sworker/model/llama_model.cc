#include "sworker/model/llama_model.h"

#include <ATen/ops/embedding.h>
#include <c10/core/InferenceMode.h>

#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "sworker/device/torch_status.h"
#include "sworker/model/prefill_attention.h"

namespace fastdecode {
namespace {

constexpr int64_t kProgressBytes = int64_t{1} << 30;  // a log line for each of these

class LlamaModel final : public Model {
 public:
  LlamaModel(const Config& config, DeviceRuntime& device, at::ScalarType dtype)
      : config_(config.model_config), device_(device), dtype_(dtype) {
    const RopeTables tables = MakeRopeTables(config_.rope, config_.attention.head_dim, config.max_context);
    rope_ = {tables.cos.to(device.device()), tables.sin.to(device.device())};
  }

  Status Load(WeightReader& reader, LayerKind kind) {
    const bool cpu = device_.device().is_cpu() && kind == LayerKind::kBest;
    const std::unique_ptr<LayerFactory> factory =
        cpu ? MakeCpuLayerFactory(config_, device_, rope_) : MakeTorchLayerFactory(config_, device_, rope_);
    FD_ASSIGN_OR_RETURN(const OuterWeights outer, ReadOuter(reader, config_, dtype_));
    embedding_ = outer.embedding.to(device_.device());
    head_ = factory->MakeHead(outer.norm, outer.head);
    Count({outer.embedding, outer.norm});
    if (!config_.tie_word_embeddings) Count({outer.head});
    int64_t said = 0;
    for (int layer = 0; layer < config_.attention.num_layers; ++layer) {
      FD_ASSIGN_OR_RETURN(const LayerWeights w, ReadLayer(reader, config_, dtype_, layer));
      layers_.push_back(factory->MakeLayer(w));
      Count({w.input_norm, w.qkv, w.qkv_bias, w.o, w.o_bias, w.post_norm, w.gate, w.gate_bias, w.up, w.up_bias, w.down,
             w.down_bias});
      if (weight_bytes_ - said >= kProgressBytes) {
        said = weight_bytes_;
        LOG(INFO) << "loading: " << layer + 1 << " of " << config_.attention.num_layers << " layers, "
                  << (weight_bytes_ >> 20) << " MiB";
      }
    }
    return {};
  }

  const ModelConfig& config() const override { return config_; }
  at::ScalarType compute_dtype() const override { return dtype_; }
  int64_t weight_bytes() const override { return weight_bytes_; }

  at::Tensor Embed(const at::Tensor& ids) const override { return at::embedding(embedding_, ids); }
  at::Tensor AttentionIn(int layer, const at::Tensor& x, const at::Tensor& positions) const override {
    return layers_[static_cast<size_t>(layer)]->AttentionIn(x, positions);
  }
  at::Tensor AttentionOut(int layer, const at::Tensor& x, const at::Tensor& o) const override {
    return layers_[static_cast<size_t>(layer)]->AttentionOut(x, o);
  }
  at::Tensor Logits(const at::Tensor& x) const override { return head_->Logits(x); }
  at::Tensor PrefillAttention(const at::Tensor& qkv, std::span<const int64_t> lengths) const override {
    return CausalAttention(qkv, lengths, config_.attention, device_);
  }

 private:
  void Count(std::initializer_list<at::Tensor> weights) {
    for (const at::Tensor& w : weights) {
      if (w.defined()) weight_bytes_ += static_cast<int64_t>(w.nbytes());
    }
  }

  const ModelConfig config_;
  DeviceRuntime& device_;
  const at::ScalarType dtype_;
  RopeTables rope_;
  at::Tensor embedding_;  // [vocab, hidden]
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::unique_ptr<OutputHead> head_;
  int64_t weight_bytes_ = 0;
};

// checkpoint: nullptr for random weights.
Result<at::ScalarType> ComputeDtype(const Config& config, bool cpu, const Checkpoint* checkpoint) {
  switch (config.model.dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBf16:
      return at::kBFloat16;
    case DType::kF16:
      if (cpu) return InvalidArgument("model.dtype: \"f16\" is not for a CPU; expected \"auto\", \"f32\" or \"bf16\"");
      return at::kHalf;
    case DType::kAuto:
      break;
  }
  if (cpu) return at::kFloat;
  const std::string& said = config.model_config.checkpoint_dtype;
  const std::string found = checkpoint == nullptr ? "" : checkpoint->DtypeOf("model.embed_tokens.weight");
  if (said == "float16" || (said.empty() && found == "F16")) return at::kHalf;
  if (said == "bfloat16" || (said.empty() && found == "BF16")) return at::kBFloat16;
  return at::kFloat;
}

// Whether a model may well lack the use for a tensor of that name.
bool MayIgnore(const std::string& name, const Config& config) {
  if (name.ends_with("rotary_emb.inv_freq")) return true;  // old checkpoints carry what config.json says
  if (name == "lm_head.weight") return config.model_config.tie_word_embeddings;
  constexpr std::string_view kLayers = "model.layers.";
  int layer = -1;
  if (name.starts_with(kLayers)) {
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  }
  return layer >= config.model_config.attention.num_layers;
}

void WarnOfUnused(const Checkpoint& checkpoint, const Config& config) {
  std::vector<std::string> names;
  for (const std::string& name : checkpoint.Unused()) {
    if (!MayIgnore(name, config)) names.push_back(name);
  }
  LOG_IF(WARNING, !names.empty()) << config.model.path << ": " << names.size()
                                  << " tensors that a Llama model does not have are ignored, the first is "
                                  << names.front();
}

Result<std::unique_ptr<Model>> Load(const Config& config, DeviceRuntime& device, LayerKind kind) {
  const bool random = config.model.weights == WeightSource::kRandom;
  std::unique_ptr<Checkpoint> checkpoint;
  if (!random) {
    FD_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(config.model.path));
  }
  FD_ASSIGN_OR_RETURN(const at::ScalarType dtype, ComputeDtype(config, device.device().is_cpu(), checkpoint.get()));
  const int64_t start_ns = NowNs();
  const std::unique_ptr<WeightReader> reader =
      random ? MakeRandomReader(config.model.seed, device) : MakeCheckpointReader(*checkpoint);
  auto model = std::make_unique<LlamaModel>(config, device, dtype);
  FD_RETURN_IF_ERROR(model->Load(*reader, kind));
  if (checkpoint) WarnOfUnused(*checkpoint, config);
  LOG(INFO) << config.model.path << ": " << (random ? "random weights, " : "")
            << config.model_config.attention.num_layers << " layers, " << (model->weight_bytes() >> 20) << " MiB of "
            << c10::toString(dtype) << " on " << device.description() << ", loaded in "
            << (NowNs() - start_ns) / 1'000'000 << " ms";
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<Model>> LoadLlama(const Config& config, DeviceRuntime& device, LayerKind kind) {
  Result<std::unique_ptr<Model>> model = Internal("not loaded");
  const Status status = RunTorch([&] {
    c10::InferenceMode inference;
    model = Load(config, device, kind);
  });
  if (!status.ok()) return Status(status.code(), config.model.path + ": " + status.message());
  return model;
}

Result<std::unique_ptr<Model>> LoadModel(const Config& config, DeviceRuntime& device) {
  return LoadLlama(config, device, LayerKind::kBest);
}

}  // namespace fastdecode
