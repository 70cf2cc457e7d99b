#include "plan/profile.h"

#include <algorithm>

namespace fastdecode::plan {
namespace {

std::string KvName(const ModelKey& key) {
  return key.kv_keys == key.kv_values ? key.kv_keys : key.kv_keys + "/" + key.kv_values;
}

// "dtype f32 instead of bf16, threads ...": `have` against what was asked for.
std::string Differences(const ModelKey& want, const ModelKey& have) {
  std::string text;
  const auto compare = [&text](const std::string& name, const auto& wanted, const auto& found) {
    if (wanted == found) return;
    const auto shown = [](const auto& value) {
      if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
        return std::to_string(value);
      } else {
        return value;
      }
    };
    text += (text.empty() ? "" : ", ") + name + " " + shown(found) + " instead of " + shown(wanted);
  };
  compare("hidden_size", want.hidden_size, have.hidden_size);
  compare("intermediate_size", want.intermediate_size, have.intermediate_size);
  compare("vocab_size", want.vocab_size, have.vocab_size);
  compare("num_heads", want.num_heads, have.num_heads);
  compare("num_kv_heads", want.num_kv_heads, have.num_kv_heads);
  compare("head_dim", want.head_dim, have.head_dim);
  compare("dtype", want.dtype, have.dtype);
  compare("device", want.device, have.device);
  compare("threads", want.threads, have.threads);
  compare("KV format", KvName(want), KvName(have));
  if (!SameTransport(want.transport, have.transport)) compare("transport", want.transport, have.transport);
  return text;
}

std::string SettledDtype(const Config& config, bool cpu) {
  if (config.model.dtype != DType::kAuto) return DTypeName(config.model.dtype);
  if (cpu) return "f32";
  const std::string& said = config.model_config.checkpoint_dtype;
  return said == "float16" ? "f16" : said == "bfloat16" ? "bf16" : "f32";
}

}  // namespace

ModelKey KeyOf(const Config& config) {
  const ModelConfig& model = config.model_config;
  const bool cpu = config.sworker.device == "cpu";
  return {.hidden_size = model.hidden_size,
          .intermediate_size = model.intermediate_size,
          .vocab_size = model.vocab_size,
          .num_heads = model.attention.num_heads,
          .num_kv_heads = model.attention.num_kv_heads,
          .head_dim = model.attention.head_dim,
          .dtype = SettledDtype(config, cpu),
          .device = cpu ? "cpu" : "cuda",
          .threads = cpu ? SWorkerThreads(config) : 0,
          .kv_keys = config.rworkers.kv_dtype.keys,
          .kv_values = config.rworkers.kv_dtype.values,
          .transport = config.transport.kind == "auto" ? kAnyTransport : config.transport.kind};
}

std::string TransportsText(const std::set<std::string>& kinds) {
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : "+") + kind;
  return text.empty() ? kAnyTransport : text;
}

bool SameTransport(const std::string& a, const std::string& b) {
  return a == b || a == kAnyTransport || b == kAnyTransport;
}

std::string Describe(const ModelKey& key) {
  std::string text = "hidden " + std::to_string(key.hidden_size) + ", feed-forward " +
                     std::to_string(key.intermediate_size) + ", vocabulary " + std::to_string(key.vocab_size) + ", " +
                     std::to_string(key.num_heads) + " heads of " + std::to_string(key.head_dim) + " over " +
                     std::to_string(key.num_kv_heads) + ", " + key.dtype + " on " + key.device;
  if (key.threads > 0) text += " with " + std::to_string(key.threads) + (key.threads == 1 ? " thread" : " threads");
  return text + ", KV " + KvName(key) + (key.transport == kAnyTransport ? "" : ", rows over " + key.transport);
}

Result<const ModelProfile*> FindModel(const Profile& profile, const ModelKey& key) {
  std::vector<const ModelProfile*> fitting;  // but for their transports
  std::string others, over;
  for (const ModelProfile& model : profile.models) {
    if (model.key == key) return &model;
    const std::string differences = Differences(key, model.key);
    others += "\n  " + model.name + ": " + differences;
    if (!differences.empty()) continue;
    fitting.push_back(&model);
    over += (over.empty() ? "" : " and ") + model.key.transport;
  }
  if (fitting.size() == 1) return fitting.front();
  if (!fitting.empty()) {
    return InvalidArgument("the profile has entries for this model over " + over + ": name one as transport.kind");
  }
  return NotFound("the profile has no entry for this model (" + Describe(key) +
                  "); measure it with fastdecode-plan measure. What is there differs:" + others);
}

}  // namespace fastdecode::plan
