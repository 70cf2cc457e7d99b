// Loading a whole model: shards, dtypes, and folders that are damaged.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/model_fixture.h"
#include "tests/unit/model/safetensors_writer.h"

namespace fastdecode::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig TinyConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.max_position_embeddings = 64;
  config.attention = {.num_layers = 2, .num_heads = 2, .num_kv_heads = 1, .head_dim = 8};
  config.rms_norm_eps = 1e-5;
  config.attention_bias = config.mlp_bias = true;
  return config;
}

// Every tensor of TinyConfig, as F32 of given values.
std::vector<TensorToWrite> TinyTensors() {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const at::Tensor values = at::randn(shape).mul_(0.2);
    tensors.push_back(
        {name, "F32", std::move(shape), {static_cast<const char*>(values.const_data_ptr()), values.nbytes()}});
  };
  add("model.embed_tokens.weight", {32, 16});
  add("model.norm.weight", {16});
  add("lm_head.weight", {32, 16});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string p = layer;
    add(p + "input_layernorm.weight", {16});
    add(p + "post_attention_layernorm.weight", {16});
    const std::vector<std::tuple<const char*, int64_t, int64_t>> products = {
        {"self_attn.q_proj", 16, 16}, {"self_attn.k_proj", 8, 16}, {"self_attn.v_proj", 8, 16},
        {"self_attn.o_proj", 16, 16}, {"mlp.gate_proj", 24, 16},   {"mlp.up_proj", 24, 16},
        {"mlp.down_proj", 16, 24}};
    for (const auto& [name, out, in] : products) {
      add(p + name + ".weight", {out, in});
      add(p + name + ".bias", {out});
    }
  }
  return tensors;
}

class LoadModelTest : public ::testing::Test {
 protected:
  LoadModelTest() : device_(MakeCpuRuntime(1)), tensors_(TinyTensors()) {
    config_.model.path = folder_.path();
    config_.model_config = TinyConfig();
    config_.max_context = 64;
  }

  void WriteSingle() { folder_.Write("model.safetensors", FileOf(tensors_)); }
  Status Load() { return LoadModel(config_, *device_).status(); }
  TensorToWrite& Find(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
  }
  // Logits of a few ids through both layers; attention is left out.
  at::Tensor Run(const Model& model) {
    c10::InferenceMode inference;
    const at::Tensor ids = at::arange(5, at::kLong);
    at::Tensor x = model.Embed(ids);
    for (int layer = 0; layer < 2; ++layer) {
      x = model.AttentionOut(layer, x, model.AttentionIn(layer, x, ids).narrow(1, 0, 16).contiguous());
    }
    return model.Logits(x);
  }

  ScratchFolder folder_;
  std::unique_ptr<DeviceRuntime> device_;
  std::vector<TensorToWrite> tensors_;
  Config config_;
};

TEST_F(LoadModelTest, ShardsGiveTheSameModel) {
  WriteSingle();
  const at::Tensor right = Run(*MustLoad(config_, *device_));
  std::filesystem::remove(folder_.path() + "/model.safetensors");

  const auto half = tensors_.begin() + static_cast<std::ptrdiff_t>(tensors_.size() / 2);
  const std::vector<TensorToWrite> first(tensors_.begin(), half), second(half, tensors_.end());
  json map;
  for (const auto& t : first) map[t.name] = "model-00001-of-00002.safetensors";
  for (const auto& t : second) map[t.name] = "model-00002-of-00002.safetensors";
  folder_.Write("model-00001-of-00002.safetensors", FileOf(first));
  folder_.Write("model-00002-of-00002.safetensors", FileOf(second));
  const auto write_index = [&] {
    folder_.Write("model.safetensors.index.json", json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  };
  write_index();
  EXPECT_TRUE(at::equal(Run(*MustLoad(config_, *device_)), right));

  map["model.norm.weight"] = "model-00002-of-00002.safetensors";
  write_index();
  EXPECT_THAT(Load().message(), AllOf(HasSubstr("00002-of-00002.safetensors: tensor model.norm.weight: missing")));
  map["model.norm.weight"] = "../elsewhere.safetensors";
  write_index();
  EXPECT_THAT(Load().message(), HasSubstr("expected the name of a file of this folder"));
  map["model.norm.weight"] = "model-00003-of-00002.safetensors";
  write_index();
  EXPECT_EQ(Load().code(), StatusCode::kNotFound);
  folder_.Write("model-00003-of-00002.safetensors", FileOf({Find("model.norm.weight")}));
  EXPECT_THAT(Load().message(), HasSubstr("tensor model.norm.weight: is in "));
  folder_.Write("model.safetensors.index.json", "{\"weight_map\": 3}");
  EXPECT_THAT(Load().message(), HasSubstr("no JSON object with a \"weight_map\""));
}

TEST_F(LoadModelTest, MissingFolderFileOrTensor) {
  EXPECT_EQ(Load().code(), StatusCode::kNotFound);
  EXPECT_THAT(Load().message(), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight",
                                 "model.layers.0.self_attn.o_proj.bias", "model.layers.0.input_layernorm.weight"}) {
    const auto whole = tensors_;
    std::erase_if(tensors_, [&](const auto& t) { return t.name == name; });
    WriteSingle();
    EXPECT_EQ(Load().code(), StatusCode::kNotFound);
    EXPECT_THAT(Load().message(), AllOf(HasSubstr("model.safetensors: tensor " + name + ": missing"),
                                        HasSubstr("expected with shape [")));
    tensors_ = whole;
  }
}

TEST_F(LoadModelTest, WrongShapeOrDtype) {
  Find("model.layers.1.self_attn.k_proj.weight").shape = {16, 8};
  WriteSingle();
  EXPECT_EQ(Load().code(), StatusCode::kDataLoss);
  EXPECT_THAT(
      Load().message(),
      HasSubstr("tensor model.layers.1.self_attn.k_proj.weight: has shape [16, 8], but config.json asks for [8, 16]"));
  Find("model.layers.1.self_attn.k_proj.weight").shape = {8, 16};
  Find("model.norm.weight").dtype = "I32";
  WriteSingle();
  EXPECT_EQ(Load().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Load().message(), HasSubstr("tensor model.norm.weight: dtype I32; this build reads F32, F16 and BF16"));
}

TEST_F(LoadModelTest, TensorsAtOddAddressesAndOfOtherDtypes) {
  const at::Tensor head = at::randn({32, 16}).to(at::kHalf);
  Find("lm_head.weight").dtype = "F16";
  Find("lm_head.weight").bytes = {static_cast<const char*>(head.const_data_ptr()), head.nbytes()};
  const auto aligned = tensors_;
  WriteSingle();
  const at::Tensor right = Run(*MustLoad(config_, *device_));
  tensors_.insert(tensors_.begin(), {"model.rotary_emb.inv_freq", "U8", {3}, "xyz"});
  WriteSingle();
  EXPECT_TRUE(at::equal(Run(*MustLoad(config_, *device_)), right));
}

TEST_F(LoadModelTest, DtypesOnTheCpu) {
  WriteSingle();
  EXPECT_EQ(MustLoad(config_, *device_)->compute_dtype(), at::kFloat);
  config_.model.dtype = DType::kBf16;
  const auto model = MustLoad(config_, *device_);
  EXPECT_EQ(model->compute_dtype(), at::kBFloat16);
  EXPECT_EQ(Run(*model).scalar_type(), at::kFloat);
  config_.model.dtype = DType::kF16;
  EXPECT_EQ(Load().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Load().message(), HasSubstr("model.dtype: \"f16\" is not for a CPU"));
}

TEST_F(LoadModelTest, FewerLayersThanTheCheckpointHas) {
  WriteSingle();
  config_.model_config.attention.num_layers = config_.model.layers = 1;
  EXPECT_TRUE(Load().ok()) << Load().message();
}

TEST_F(LoadModelTest, RandomWeightsNeedNoCheckpoint) {
  config_.model.weights = WeightSource::kRandom;
  config_.model.seed = 5;
  const at::Tensor first = Run(*MustLoad(config_, *device_));
  const auto three = MakeCpuRuntime(3);
  EXPECT_TRUE(at::allclose(Run(*MustLoad(config_, *three)), first, 1e-4, 1e-5));
  config_.model.seed = 6;
  EXPECT_FALSE(at::allclose(Run(*MustLoad(config_, *device_)), first, 1e-2, 1e-3));
}

TEST(LoadRealModel, CutShortAtManyLengths) {
  const ScratchFolder folder;
  Config config = FolderConfig(ModelFolder("tiny-llama3"));
  const std::string whole = ReadFile(config.model.path + "/model.safetensors");
  config.model.path = folder.path();
  const auto device = MakeCpuRuntime(1);
  for (size_t length = 0; length < whole.size(); length = length < 64 ? length + 1 : length + whole.size() / 97) {
    folder.Write("model.safetensors", whole.substr(0, length));
    const Status status = LoadModel(config, *device).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr("model.safetensors: "));
  }
  folder.Write("model.safetensors", whole);
  EXPECT_TRUE(LoadModel(config, *device).ok());
}

}  // namespace
}  // namespace fastdecode::testing
