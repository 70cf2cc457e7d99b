#include "common/config/model_config.h"

#include <sys/stat.h>

#include "common/config/json_file.h"
#include "common/config/json_reader.h"
#include "common/config/rope_config.h"

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxPositions = int64_t{1} << 24;
constexpr size_t kMaxEosIds = 64;

// Hugging Face writes null for "the default".
json WithoutNulls(const json& object) {
  if (!object.is_object()) return object;
  json kept = json::object();
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return kept;
}

void ReadShape(ObjectReader& reader, ModelConfig& model) {
  AttentionShape& shape = model.attention;
  reader.Integer("vocab_size", 1, kMaxVocab, &model.vocab_size);
  reader.Integer("hidden_size", 1, kMaxWidth, &model.hidden_size);
  reader.Integer("intermediate_size", 1, kMaxWidth, &model.intermediate_size);
  reader.Integer("num_hidden_layers", 1, kMaxLayers, &shape.num_layers);
  reader.Integer("num_attention_heads", 1, kMaxHeads, &shape.num_heads);
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    reader.Require(key);
  }
  if (!reader.status().ok()) return;

  shape.num_kv_heads = shape.num_heads;
  reader.Integer("num_key_value_heads", 1, kMaxHeads, &shape.num_kv_heads);
  if (shape.num_heads % shape.num_kv_heads != 0) {
    reader.Expected("num_key_value_heads", "a divisor of num_attention_heads, " + std::to_string(shape.num_heads));
  }
  const std::string head_dims = "a multiple of 8 from 8 to " + std::to_string(kMaxHeadDim);
  if (reader.Find("head_dim") == nullptr) {
    if (!reader.status().ok()) return;
    const int64_t derived = model.hidden_size / shape.num_heads;
    if (model.hidden_size % shape.num_heads != 0 || derived % 8 != 0 || derived > kMaxHeadDim) {
      return reader.Fail("head_dim",
                         "is missing, and hidden_size / num_attention_heads = " + std::to_string(model.hidden_size) +
                             " / " + std::to_string(shape.num_heads) + " is not " + head_dims);
    }
    shape.head_dim = static_cast<int32_t>(derived);
  } else {
    reader.Integer("head_dim", 8, kMaxHeadDim, &shape.head_dim);
    if (shape.head_dim % 8 != 0) reader.Expected("head_dim", head_dims);
  }
}

void ReadContext(ObjectReader& reader, ModelConfig& model) {
  // The first conversions of Llama (2023) wrote only max_sequence_length.
  reader.Integer("max_sequence_length", 1, kMaxPositions, &model.max_position_embeddings);
  reader.Integer("max_position_embeddings", 1, kMaxPositions, &model.max_position_embeddings);
  if (model.max_position_embeddings == 0) reader.Require("max_position_embeddings");
}

// Refuses what would change the results and is not implemented.
void RefuseUnsupported(ObjectReader& reader) {
  std::string activation = "silu";
  reader.Text("hidden_act", &activation);
  if (activation != "silu") {
    reader.Fail("hidden_act", "\"" + activation + "\" is not in this build; expected \"silu\"",
                StatusCode::kUnimplemented);
  }
  if (reader.Find("quantization_config") != nullptr) {
    reader.Fail("quantization_config", "quantized checkpoints are not in this build; expected f32, f16 or bf16 weights",
                StatusCode::kUnimplemented);
  }
  double rotary = 1.0;
  reader.Number("partial_rotary_factor", 0, 1, &rotary);
  if (rotary != 1.0) {
    reader.Fail("partial_rotary_factor", "only 1.0 is in this build", StatusCode::kUnimplemented);
  }
}

void ReadDtype(ObjectReader& reader, std::string* dtype) {
  std::string old_name;
  const std::vector<std::string> here = {"float32", "float16", "bfloat16"};
  const std::vector<std::string> elsewhere = {"float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"};
  reader.Choice("torch_dtype", here, elsewhere, &old_name);
  reader.Choice("dtype", here, elsewhere, dtype);
  if (dtype->empty()) *dtype = old_name;
  if (!old_name.empty() && old_name != *dtype) {
    reader.Expected("torch_dtype", "the same as dtype, \"" + *dtype + "\"");
  }
}

// An id of the vocabulary, or a list of them.
void ReadEos(ObjectReader& reader, int64_t vocab_size, std::vector<int64_t>* ids) {
  const json* value = reader.Find("eos_token_id");
  if (value == nullptr) return;
  const json list = value->is_array() ? *value : json::array({*value});
  std::vector<int64_t> found;
  for (const json& id : list) {
    const bool valid = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size);
    if (!valid || found.size() == kMaxEosIds) {
      return reader.Expected("eos_token_id", "an id below vocab_size, " + std::to_string(vocab_size) +
                                                 ", or a list of at most 64 of them");
    }
    found.push_back(id.get<int64_t>());
  }
  *ids = std::move(found);
}

Status ReadConfigFile(const std::string& path, ModelConfig& model) {
  FD_ASSIGN_OR_RETURN(const json document, ReadJsonFile(path));
  const json object = WithoutNulls(document);
  ObjectReader reader(object, "");
  reader.Text("model_type", &model.model_type);
  reader.Require("model_type");
  if (model.model_type != "llama") {
    reader.Fail("model_type", "\"" + model.model_type + "\" is not in this build; expected \"llama\"",
                StatusCode::kUnimplemented);
  }
  RefuseUnsupported(reader);
  ReadShape(reader, model);
  ReadContext(reader, model);
  reader.Number("rms_norm_eps", 1e-12, 0.1, &model.rms_norm_eps);
  reader.Require("rms_norm_eps");
  reader.Bool("attention_bias", &model.attention_bias);
  reader.Bool("mlp_bias", &model.mlp_bias);
  reader.Bool("tie_word_embeddings", &model.tie_word_embeddings);
  ReadDtype(reader, &model.checkpoint_dtype);
  reader.Integer("bos_token_id", 0, model.vocab_size - 1, &model.bos_token_id);
  ReadEos(reader, model.vocab_size, &model.eos_token_ids);
  if (reader.status().ok()) reader.Adopt(ReadRopeConfig(object, &model.rope));
  const Status& status = reader.status();
  return status.ok() ? status : Status(status.code(), path + ": " + status.message());
}

// Its eos ids win: that is where Hugging Face's generate() takes them from.
Status ReadGenerationFile(const std::string& path, ModelConfig& model) {
  const Result<json> document = ReadJsonFile(path);
  if (document.status().code() == StatusCode::kNotFound) return OkStatus();
  FD_RETURN_IF_ERROR(document.status());
  const json object = WithoutNulls(*document);
  ObjectReader reader(object, "");
  ReadEos(reader, model.vocab_size, &model.eos_token_ids);
  const Status& status = reader.status();
  return status.ok() ? status : Status(status.code(), path + ": " + status.message());
}

}  // namespace

Result<ModelConfig> LoadModelConfig(const std::string& folder) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return NotFound(folder + ": no such folder; expected a Hugging Face model folder with a config.json");
  }
  ModelConfig model;
  FD_RETURN_IF_ERROR(ReadConfigFile(folder + "/config.json", model));
  FD_RETURN_IF_ERROR(ReadGenerationFile(folder + "/generation_config.json", model));
  return model;
}

}  // namespace fastdecode
