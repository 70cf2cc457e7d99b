#include "sworker/model/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <utility>
#include <vector>

namespace fastdecode {
namespace {

at::ScalarType ScalarTypeOf(const std::string& dtype) {
  return dtype == "F32" ? at::kFloat : dtype == "F16" ? at::kHalf : at::kBFloat16;  // Checkpoint::Find gives no other
}

class CheckpointReader final : public WeightReader {
 public:
  explicit CheckpointReader(Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  bool Has(const std::string& name) const override { return !checkpoint_.DtypeOf(name).empty(); }

  Status Fill(const std::string& name, const at::Tensor& out) override {
    FD_ASSIGN_OR_RETURN(const TensorView* view, checkpoint_.Find(name, out.sizes()));
    const at::ScalarType dtype = ScalarTypeOf(view->dtype);
    if (dtype == out.scalar_type()) {
      std::memcpy(out.mutable_data_ptr(), view->bytes.data(), view->bytes.size());
      return {};
    }
    // The file keeps no alignment that libtorch could rely on.
    const bool aligned = reinterpret_cast<uintptr_t>(view->bytes.data()) % c10::elementSize(dtype) == 0;
    if (aligned) {
      out.copy_(at::from_blob(const_cast<std::byte*>(view->bytes.data()), out.sizes(), dtype));
    } else {
      const at::Tensor copy = at::empty(out.sizes(), dtype);
      std::memcpy(copy.mutable_data_ptr(), view->bytes.data(), view->bytes.size());
      out.copy_(copy);
    }
    return {};
  }

 private:
  Checkpoint& checkpoint_;
};

// Collects tensors for one part of the model and keeps the first error.
class Assembler {
 public:
  Assembler(WeightReader& reader, at::ScalarType dtype) : reader_(reader), dtype_(dtype) {}

  at::Tensor Read(const std::string& name, std::vector<int64_t> shape) {
    at::Tensor out = at::empty(shape, dtype_);
    Fill(name, out);
    return out;
  }
  // Parts stacked by rows: {name, rows}; `columns` of each, or none for biases.
  at::Tensor Stack(const std::vector<std::pair<std::string, int64_t>>& parts, std::vector<int64_t> columns) {
    int64_t rows = 0;
    for (const auto& part : parts) rows += part.second;
    std::vector<int64_t> shape = {rows};
    shape.insert(shape.end(), columns.begin(), columns.end());
    at::Tensor out = at::empty(shape, dtype_);
    int64_t begin = 0;
    for (const auto& [name, part_rows] : parts) {
      Fill(name, out.narrow(0, begin, part_rows));
      begin += part_rows;
    }
    return out;
  }
  const Status& status() const { return status_; }

 private:
  void Fill(const std::string& name, const at::Tensor& out) {
    if (status_.ok()) status_ = reader_.Fill(name, out);
  }
  WeightReader& reader_;
  at::ScalarType dtype_;
  Status status_;
};

}  // namespace

std::unique_ptr<WeightReader> MakeCheckpointReader(Checkpoint& checkpoint) {
  return std::make_unique<CheckpointReader>(checkpoint);
}

Result<LayerWeights> ReadLayer(WeightReader& reader, const ModelConfig& config, at::ScalarType dtype, int layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t q = config.attention.q_width(), kv = config.attention.kv_width();
  Assembler read(reader, dtype);
  LayerWeights w;
  w.input_norm = read.Read(prefix + "input_layernorm.weight", {hidden});
  w.qkv = read.Stack(
      {{attention + "q_proj.weight", q}, {attention + "k_proj.weight", kv}, {attention + "v_proj.weight", kv}},
      {hidden});
  w.o = read.Read(attention + "o_proj.weight", {hidden, q});
  w.post_norm = read.Read(prefix + "post_attention_layernorm.weight", {hidden});
  w.gate = read.Read(mlp + "gate_proj.weight", {inner, hidden});
  w.up = read.Read(mlp + "up_proj.weight", {inner, hidden});
  w.down = read.Read(mlp + "down_proj.weight", {hidden, inner});
  if (config.attention_bias) {
    w.qkv_bias = read.Stack(
        {{attention + "q_proj.bias", q}, {attention + "k_proj.bias", kv}, {attention + "v_proj.bias", kv}}, {});
    w.o_bias = read.Read(attention + "o_proj.bias", {hidden});
  }
  if (config.mlp_bias) {
    w.gate_bias = read.Read(mlp + "gate_proj.bias", {inner});
    w.up_bias = read.Read(mlp + "up_proj.bias", {inner});
    w.down_bias = read.Read(mlp + "down_proj.bias", {hidden});
  }
  FD_RETURN_IF_ERROR(read.status());
  return w;
}

Result<OuterWeights> ReadOuter(WeightReader& reader, const ModelConfig& config, at::ScalarType dtype) {
  Assembler read(reader, dtype);
  constexpr const char* kEmbedding = "model.embed_tokens.weight";
  constexpr const char* kHead = "lm_head.weight";
  const std::vector<int64_t> shape = {config.vocab_size, config.hidden_size};
  const bool tied = config.tie_word_embeddings;
  OuterWeights w;
  // Of two tied tensors a checkpoint keeps one, and some keep the head.
  w.embedding = read.Read(tied && !reader.Has(kEmbedding) && reader.Has(kHead) ? kHead : kEmbedding, shape);
  w.norm = read.Read("model.norm.weight", {config.hidden_size});
  w.head = tied ? w.embedding : read.Read(kHead, shape);
  FD_RETURN_IF_ERROR(read.status());
  return w;
}

}  // namespace fastdecode
