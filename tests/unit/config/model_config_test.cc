#include "common/config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "temp_folder.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Published(const std::string& name) { return ReadText(SourceFile("tests/data/configs/" + name + ".json")); }

Result<ModelConfig> Load(const std::string& config, const std::string& generation = "") {
  const TempFolder folder;
  folder.Write("config.json", config);
  if (!generation.empty()) folder.Write("generation_config.json", generation);
  return LoadModelConfig(folder.path());
}

// Llama-3.1-8B's published config with some members changed; null removes one.
json Changed(const json& patch, const std::string& name = "llama-3.1-8b") {
  json config = json::parse(Published(name));
  for (const auto& [key, value] : patch.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  return config;
}

Status StatusOf(const json& patch, const std::string& name = "llama-3.1-8b") {
  return Load(Changed(patch, name).dump()).status();
}

TEST(ModelConfig, ReadsLlama31) {
  const auto model = Load(Published("llama-3.1-8b"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->attention, (AttentionShape{32, 32, 8, 128}));
  EXPECT_EQ(model->vocab_size, 128256);
  EXPECT_EQ(model->hidden_size, 4096);
  EXPECT_EQ(model->intermediate_size, 14336);
  EXPECT_EQ(model->max_position_embeddings, 131072);
  EXPECT_EQ(model->rms_norm_eps, 1e-5);
  EXPECT_EQ(model->rope, (RopeConfig{RopeType::kLlama3, 500000.0, 8.0, 1.0, 4.0, 8192}));
  EXPECT_EQ(model->checkpoint_dtype, "bfloat16");
  EXPECT_EQ(model->bos_token_id, 128000);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(128001));
  EXPECT_FALSE(model->tie_word_embeddings || model->attention_bias || model->mlp_bias);
}

TEST(ModelConfig, ReadsOtherPublishedLlamas) {
  EXPECT_EQ(Load(Published("llama-3.1-405b"))->attention, (AttentionShape{126, 128, 8, 128}));
  EXPECT_EQ(Load(Published("llama-2-70b"))->attention, (AttentionShape{80, 64, 8, 128}));
  EXPECT_EQ(Load(Published("llama-3-8b"))->rope, (RopeConfig{RopeType::kDefault, 500000.0}));
  const auto llama2 = Load(Published("llama-2-7b"));  // no rope_theta: LlamaConfig's default
  EXPECT_EQ(llama2->rope, (RopeConfig{RopeType::kDefault, 10000.0}));
  EXPECT_EQ(llama2->max_position_embeddings, 4096);
  const auto first = Load(Published("llama-7b-2023"));  // no num_key_value_heads, only max_sequence_length
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->attention, (AttentionShape{32, 32, 32, 128}));
  EXPECT_EQ(first->max_position_embeddings, 2048);
  EXPECT_THAT(first->eos_token_ids, ElementsAre(1));
  EXPECT_EQ(first->checkpoint_dtype, "float16");
}

TEST(ModelConfig, BothGenerationsOfNamesMeanTheSame) {
  const auto new_names = Load(Published("tiny-llama3"));
  const auto old_names = Load(Published("tiny-llama3-v4"));
  ASSERT_TRUE(new_names.ok()) << new_names.status().message();
  ASSERT_TRUE(old_names.ok()) << old_names.status().message();
  EXPECT_EQ(*new_names, *old_names);
  EXPECT_EQ(new_names->rope, (RopeConfig{RopeType::kLlama3, 500000.0, 8.0, 1.0, 4.0, 128}));
  EXPECT_EQ(new_names->attention, (AttentionShape{3, 4, 2, 16}));
  EXPECT_EQ(new_names->checkpoint_dtype, "float16");
}

TEST(ModelConfig, HeadDimMayDifferFromHiddenByHeads) {
  EXPECT_EQ(Load(Changed({{"head_dim", 64}}).dump())->attention.head_dim, 64);
  EXPECT_EQ(Load(Changed({{"num_attention_heads", 71}, {"num_key_value_heads", 1}, {"head_dim", 64}}).dump())
                ->attention.num_heads,
            71);
}

TEST(ModelConfig, EosIdsOfTheGenerationConfigWin) {
  const std::string config = Published("llama-3.1-8b");
  EXPECT_THAT(Load(config, R"({"eos_token_id": [128001, 128008, 128009]})")->eos_token_ids,
              ElementsAre(128001, 128008, 128009));
  EXPECT_THAT(Load(config, R"({"eos_token_id": null, "bos_token_id": 1})")->eos_token_ids, ElementsAre(128001));
  EXPECT_THAT(Load(Changed({{"eos_token_id", nullptr}}).dump())->eos_token_ids, IsEmpty());
  EXPECT_THAT(Load(config, "{").status().message(), HasSubstr("generation_config.json: parse error at line 1"));
  EXPECT_THAT(Load(config, R"({"eos_token_id": 128256})").status().message(), HasSubstr("below vocab_size, 128256"));
}

TEST(ModelConfig, OldLinearScaling) {
  const json patch = {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}};
  EXPECT_EQ(Load(Changed(patch, "llama-2-7b").dump())->rope, (RopeConfig{RopeType::kLinear, 10000.0, 2.0}));
}

TEST(ModelConfig, ThetaHasNoDefaultInTheNewGeneration) {
  json config = json::parse(Published("tiny-llama3"));
  config["rope_parameters"].erase("rope_theta");
  EXPECT_THAT(Load(config.dump()).status().message(), HasSubstr("rope_parameters.rope_theta: is missing"));
}

TEST(ModelConfig, ContradictingNamesAreRefused) {
  json config = json::parse(Published("tiny-llama3"));
  EXPECT_THAT(StatusOf({{"rope_theta", 1000.0}}, "tiny-llama3").message(),
              HasSubstr("rope_theta: found 1000.0; expected the same as rope_parameters.rope_theta"));
  EXPECT_THAT(StatusOf({{"torch_dtype", "float32"}}, "tiny-llama3").message(), HasSubstr("the same as dtype"));
  EXPECT_THAT(StatusOf({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}, "tiny-llama3").message(),
              HasSubstr("rope_scaling: "));
  EXPECT_FALSE(StatusOf({{"rope_scaling", {{"rope_type", "linear"}, {"type", "llama3"}, {"factor", 2.0}}}}).ok());
}

TEST(ModelConfig, UnsupportedIsRefusedByName) {
  const auto refused = [](const Status& status, const std::string& name) {
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << status.ToString();
    EXPECT_THAT(status.message(), AllOf(HasSubstr(name), HasSubstr("not in this build")));
  };
  refused(Load(Published("mistral-7b")).status(), "model_type: \"mistral\"");
  refused(Load(Published("qwen3-0.6b")).status(), "model_type: \"qwen3\"");
  refused(Load(Published("opt-30b")).status(), "model_type: \"opt\"");
  for (const char* type : {"yarn", "dynamic", "longrope"}) {
    refused(StatusOf({{"rope_scaling", {{"rope_type", type}, {"factor", 4.0}}}}),
            "rope_scaling.rope_type: \"" + std::string(type) + "\"");
  }
  refused(StatusOf({{"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}}}), "rope_scaling.type: \"dynamic\"");
  refused(StatusOf({{"hidden_act", "gelu"}}), "\"gelu\"");
  refused(StatusOf({{"quantization_config", {{"quant_method", "gptq"}}}}), "quantized");
  refused(StatusOf({{"torch_dtype", "float8_e4m3fn"}}), "float8_e4m3fn");
}

struct BadMember {
  const char* key;
  const char* value;  // JSON; null removes the member
  const char* message;
};

class ModelConfigBadMember : public testing::TestWithParam<BadMember> {};

TEST_P(ModelConfigBadMember, IsOneClearError) {
  const Status status = StatusOf({{GetParam().key, json::parse(GetParam().value)}});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/config.json: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Members, ModelConfigBadMember,
    testing::Values(BadMember{"vocab_size", "null", "vocab_size: is missing"},
                    BadMember{"vocab_size", "-1", "vocab_size: found -1"},
                    BadMember{"vocab_size", "9223372036854775808", "vocab_size: found 9223372036854775808"},
                    BadMember{"hidden_size", "\"4096\"", "hidden_size: found \"4096\"; expected a whole number"},
                    BadMember{"hidden_size", "4097", "head_dim: is missing"},
                    BadMember{"num_hidden_layers", "0", "num_hidden_layers: found 0"},
                    BadMember{"num_hidden_layers", "1e9", "num_hidden_layers: found 1000000000.0"},
                    BadMember{"num_attention_heads", "0", "num_attention_heads: found 0"},
                    BadMember{"num_key_value_heads", "5", "num_key_value_heads: found 5; expected a divisor"},
                    BadMember{"num_key_value_heads", "0", "num_key_value_heads: found 0"},
                    BadMember{"head_dim", "12", "head_dim: found 12"}, BadMember{"head_dim", "264", "head_dim"},
                    BadMember{"max_position_embeddings", "null", "max_position_embeddings: is missing"},
                    BadMember{"rms_norm_eps", "null", "rms_norm_eps: is missing"},
                    BadMember{"rms_norm_eps", "0", "rms_norm_eps: found 0"},
                    BadMember{"rope_theta", "0.5", "rope_theta: found 0.5"},
                    BadMember{"rope_theta", "\"big\"", "rope_theta: found \"big\""},
                    BadMember{"rope_scaling", "8", "rope_scaling: found 8; expected an object"},
                    BadMember{"rope_scaling", "{}", "rope_scaling.rope_type: is missing"},
                    BadMember{"rope_scaling", "{\"rope_type\": \"linear\"}", "rope_scaling.factor: is missing"},
                    BadMember{"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor: is miss"},
                    BadMember{"rope_scaling", "{\"rope_type\": \"cosine\"}", "nearest"},
                    BadMember{"attention_bias", "1", "attention_bias: found 1; expected true or false"},
                    BadMember{"eos_token_id", "-1", "eos_token_id: found -1"},
                    BadMember{"eos_token_id", "[1, \"2\"]", "eos_token_id: found [1,\"2\"]"},
                    BadMember{"bos_token_id", "128256", "bos_token_id: found 128256"},
                    BadMember{"model_type", "null", "model_type: is missing"}));

TEST(ModelConfig, MissingFilesAreNotFound) {
  const TempFolder folder;
  EXPECT_EQ(LoadModelConfig(folder.path()).status().code(), StatusCode::kNotFound);
  const Status status = LoadModelConfig(folder.path() + "/none").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("no such folder"));
}

}  // namespace
}  // namespace fastdecode
