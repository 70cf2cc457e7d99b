// A Hugging Face config.json of the Llama family, read into what the program needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/model_shape.h"
#include "common/base/status.h"

namespace fastdecode {

enum class RopeType { kDefault, kLinear, kLlama3 };

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  std::string model_type;  // "llama"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  AttentionShape attention;  // layers, heads, KV heads, head_dim (given or derived)
  double rms_norm_eps = 0;
  RopeConfig rope;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  std::string checkpoint_dtype;        // "float32", "float16", "bfloat16": torch_dtype or dtype; empty: not said
  int64_t bos_token_id = -1;           // -1: none
  std::vector<int64_t> eos_token_ids;  // of generation_config.json where it has them, else config.json's
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Reads folder/config.json (both generations of Hugging Face names) and, if there,
// folder/generation_config.json. Every number is bounded before it is believed; an
// unknown model_type, rope type or activation is refused by name (kUnimplemented). An
// error starts with the file's path and names the key. kNotFound: no folder or config.json.
Result<ModelConfig> LoadModelConfig(const std::string& folder);

}  // namespace fastdecode
