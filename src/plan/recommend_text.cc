// A recommendation for people, for programs, and as a config.
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "common/config/config.h"
#include "plan/recommend.h"

namespace fastdecode::plan {
namespace {

using nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024 * 1024;

[[gnu::format(printf, 2, 3)]] void Append(std::string* out, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  *out += line;
}

double GiB(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

void AppendOptions(std::string* out, const std::vector<Option>& options, bool prices) {
  for (const Option& option : options) {
    Append(out, "  %-28s %7d %7d %10.1f %10.0f  %-10s", option.name.c_str(), option.sockets, option.batch,
           option.step_s * 1e3, option.tokens_per_s, option.bound.c_str());
    if (prices) Append(out, " %12.0f", option.tokens_per_money);
    *out += "\n";
  }
}

ordered_json OptionsJson(const std::vector<Option>& options) {
  ordered_json list = ordered_json::array();
  for (const Option& option : options) {
    list.push_back({{"name", option.name},
                    {"sockets", option.sockets},
                    {"batch", option.batch},
                    {"step_ms", option.step_s * 1e3},
                    {"tokens_per_s", option.tokens_per_s},
                    {"bound", option.bound},
                    {"tokens_per_money", option.tokens_per_money}});
  }
  return list;
}

// Whole MiB, so that a config says it shortly; at least a config's least.
std::string KvMemory(int64_t bytes) {
  const int64_t mib = std::max<int64_t>(1, (bytes + (1 << 20) - 1) >> 20);
  return FormatSize(mib << 20);
}

}  // namespace

std::string Table(const Wishes& wishes, const Recommendation& r) {
  std::string out;
  const StepPrediction& step = r.steady.step;
  Append(&out, "%s: %s, %d layers\n", wishes.times.name.c_str(), Describe(wishes.times.key).c_str(),
         r.deployment.layers);
  Append(&out, "sequences of %.0f prompt and %.0f output tokens, the longest of %lld\n\n", wishes.prompt_tokens,
         wishes.output_tokens, static_cast<long long>(r.max_context));
  Append(&out, "%-34s %d, in %d mini-batches\n", "batch (sequences in flight)", r.deployment.batch,
         r.deployment.mini_batches);
  Append(&out, "%-34s %d of %d (balanced: %.1f)\n", "R-workers, one a socket", r.deployment.rworkers, wishes.sockets,
         r.balanced_rworkers);
  Append(&out, "%-34s %lld cached tokens a R-worker\n", "workload limit W", static_cast<long long>(r.workload_limit));
  Append(&out, "%-34s %d steps\n", "between injections, F", r.interval);
  Append(&out, "%-34s %.1f GiB (weights %.1f)\n", "memory of the device", GiB(r.memory.device()),
         GiB(r.memory.weights));
  Append(&out, "%-34s %.1f GiB\n\n", "KV cache of each R-worker", GiB(r.memory.kv_of_rworker));
  Append(&out, "%-34s %.0f (%s bound)\n", "expected tokens/s", step.tokens_per_s, step.bound.c_str());
  Append(&out, "%-34s %.1f ms; S-part %.1f, busiest R-worker %.1f\n", "a step", step.step_s * 1e3,
         step.device_busy_s * 1e3, step.rworker_busy_s * 1e3);
  Append(&out, "%-34s T %.3f, R-part %.3f, wire %.3f, copies %.3f ms\n", "a layer of a mini-batch", step.layer_s * 1e3,
         step.attend_s * 1e3, step.wire_s * 1e3, step.copy_s * 1e3);
  Append(&out, "%-34s %.1f s, of it prefill %.2f s\n", "a sequence", r.steady.sequence_s, r.steady.prefill_latency_s);
  out += "\nwhy\n";
  for (const std::string& reason : r.reasons) out += "  " + reason + "\n";
  if (!r.shortfalls.empty()) out += "\nwhat falls short\n";
  for (const std::string& shortfall : r.shortfalls) out += "  " + shortfall + "\n";
  const bool prices = wishes.device_price > 0;
  Append(&out, "\n  %-28s %7s %7s %10s %10s  %-10s%s\n", "", "sockets", "batch", "step, ms", "tokens/s", "bound",
         prices ? " tokens/money" : "");
  AppendOptions(&out, r.options, prices);
  out += "what if\n";
  AppendOptions(&out, r.what_if, prices);
  return out;
}

ordered_json ToJson(const Wishes& wishes, const Recommendation& r) {
  const StepPrediction& step = r.steady.step;
  return {{"model", wishes.times.name},
          {"prompt_tokens", wishes.prompt_tokens},
          {"output_tokens", wishes.output_tokens},
          {"batch", r.deployment.batch},
          {"mini_batches", r.deployment.mini_batches},
          {"rworkers", r.deployment.rworkers},
          {"max_context", r.max_context},
          {"balanced_rworkers", r.balanced_rworkers},
          {"workload_limit", r.workload_limit},
          {"interval_steps", r.interval},
          {"memory",
           {{"device_bytes", r.memory.device()},
            {"weights_bytes", r.memory.weights},
            {"kv_bytes_of_rworker", r.memory.kv_of_rworker}}},
          {"tokens_per_s", step.tokens_per_s},
          {"step_ms", step.step_s * 1e3},
          {"s_part_ms", step.device_busy_s * 1e3},
          {"r_part_ms", step.rworker_busy_s * 1e3},
          {"layer_ms", step.layer_s * 1e3},
          {"attend_ms", step.attend_s * 1e3},
          {"wire_ms", step.wire_s * 1e3},
          {"copy_ms", step.copy_s * 1e3},
          {"sequence_s", r.steady.sequence_s},
          {"prefill_s", r.steady.prefill_latency_s},
          {"bound", step.bound},
          {"reasons", r.reasons},
          {"shortfalls", r.shortfalls},
          {"options", OptionsJson(r.options)},
          {"what_if", OptionsJson(r.what_if)}};
}

ordered_json MakeConfig(const Wishes& wishes, const Recommendation& r, const ConfigChoice& choice) {
  ordered_json rworkers = {{"kv_memory", KvMemory(r.memory.kv_of_rworker)}, {"block_tokens", wishes.block_tokens}};
  const ModelKey& key = wishes.times.key;
  if (key.kv_keys == key.kv_values) {
    rworkers["kv_dtype"] = key.kv_keys;
  } else {
    rworkers["kv_dtype"] = {{"keys", key.kv_keys}, {"values", key.kv_values}};
  }
  if (choice.hosts.empty()) {
    rworkers["count"] = r.deployment.rworkers;
  } else {
    for (int i = 0; i < r.deployment.rworkers; ++i) {
      rworkers["hosts"].push_back({{"address", choice.hosts[static_cast<size_t>(i)]}});
    }
  }
  ordered_json sworker = {{"device", choice.device}};
  if (choice.device == "cpu" && key.threads > 0) sworker["threads"] = key.threads;
  ordered_json config = {
      {"model",
       {{"path", choice.model_path},
        {"weights", choice.weights},
        {"dtype", choice.dtype},
        {"layers", r.deployment.layers},
        {"max_context", r.max_context}}},
      {"sworker", std::move(sworker)},
      {"rworkers", std::move(rworkers)},
      {"pipeline", {{"mini_batches", r.deployment.mini_batches}, {"max_batch", r.deployment.batch}}},
      {"load_control", {{"enabled", true}, {"workload_limit", r.workload_limit}, {"interval_steps", "auto"}}}};
  const bool one_transport = key.transport != kAnyTransport && key.transport.find('+') == std::string::npos;
  if (one_transport) config["transport"] = {{"kind", key.transport}};
  if (!choice.profile.empty()) config["plan"] = {{"profile", choice.profile}};
  return config;
}

}  // namespace fastdecode::plan
