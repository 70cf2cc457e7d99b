// The rotary embedding's part of a model's config.json, which has two generations:
// rope_theta and rope_scaling at the top, and rope_parameters with all in it.
#include "common/config/rope_config.h"

#include "common/config/json_reader.h"

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

void ReadType(ObjectReader& reader, RopeType* type) {
  // transformers' own names for the types that this program does not have.
  const std::vector<std::string> elsewhere = {"dynamic", "yarn", "longrope", "su", "mrope", "proportional"};
  const std::vector<std::string> here = {"default", "linear", "llama3"};
  std::string name, old_name;
  reader.Choice("rope_type", here, elsewhere, &name);
  reader.Choice("type", here, elsewhere, &old_name);
  if (name.empty()) name = old_name;
  if (name.empty()) return reader.Require("rope_type");
  if (!old_name.empty() && old_name != name) return reader.Expected("type", "the same as rope_type, \"" + name + "\"");
  *type = name == "linear" ? RopeType::kLinear : name == "llama3" ? RopeType::kLlama3 : RopeType::kDefault;
}

// rope_scaling or the same members of rope_parameters.
void ReadScaling(ObjectReader& reader, RopeConfig& rope) {
  ReadType(reader, &rope.type);
  double rotary = 1.0;
  reader.Number("partial_rotary_factor", 0, 1, &rotary);
  if (rotary != 1.0) {
    reader.Fail("partial_rotary_factor", "only 1.0 is in this build", StatusCode::kUnimplemented);
  }
  if (rope.type == RopeType::kDefault) return;
  reader.Require("factor");
  reader.Number("factor", 1, kMaxFactor, &rope.factor);
  if (rope.type == RopeType::kLinear) return;
  for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    reader.Require(key);
  }
  reader.Number("low_freq_factor", 1e-6, kMaxFactor, &rope.low_freq_factor);
  reader.Number("high_freq_factor", 1e-6, kMaxFactor, &rope.high_freq_factor);
  reader.Integer("original_max_position_embeddings", 1, int64_t{1} << 24, &rope.original_max_position_embeddings);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    reader.Expected("high_freq_factor", "more than low_freq_factor");
  }
}

}  // namespace

Status ReadRopeConfig(const json& model, RopeConfig* rope) {
  ObjectReader root(model, "");
  const json* scaling = root.Find("rope_scaling");
  const json* parameters = root.Find("rope_parameters");
  // Only the older generation has a default that its reader may assume: LlamaConfig's 10000.
  RopeConfig old_way;
  root.Number("rope_theta", 1, kMaxTheta, &old_way.theta);
  if (scaling != nullptr) {
    ObjectReader reader(*scaling, "rope_scaling");
    ReadScaling(reader, old_way);
    root.Adopt(reader.status());
  }
  if (parameters == nullptr || !root.status().ok()) {
    *rope = old_way;
    return root.status();
  }

  RopeConfig new_way;
  ObjectReader reader(*parameters, "rope_parameters");
  ReadScaling(reader, new_way);
  reader.Require("rope_theta");
  reader.Number("rope_theta", 1, kMaxTheta, &new_way.theta);
  root.Adopt(reader.status());
  if (model.contains("rope_theta") && old_way.theta != new_way.theta) {
    root.Expected("rope_theta", "the same as rope_parameters.rope_theta");
  }
  old_way.theta = new_way.theta;
  if (scaling != nullptr && !(old_way == new_way)) root.Expected("rope_scaling", "the same as rope_parameters");
  *rope = new_way;
  return root.status();
}

}  // namespace fastdecode
