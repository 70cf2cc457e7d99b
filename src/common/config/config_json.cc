#include <nlohmann/json.hpp>

#include "common/config/config.h"

namespace fastdecode {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order of docs/config.md

template <typename T>
Json AutoOr(T number) {
  return number == 0 ? Json("auto") : Json(number);
}

Json HostsToJson(const std::vector<RWorkerHost>& hosts) {
  Json list = Json::array();
  for (const RWorkerHost& host : hosts) {
    Json object = {{"address", host.address}, {"listen", host.listen}};
    if (!host.ssh.empty()) object["ssh"] = host.ssh;
    if (!host.bin.empty()) object["bin"] = host.bin;
    object["threads"] = AutoOr(host.threads);
    object["kv_memory"] = FormatMemoryAmount(host.kv_memory);
    list.push_back(std::move(object));
  }
  return list;
}

Json KvDtypeToJson(const KvDtype& dtype) {
  if (dtype.keys == dtype.values) return dtype.keys;
  return {{"keys", dtype.keys}, {"values", dtype.values}};
}

Json RWorkersToJson(const RWorkersOptions& rworkers) {
  Json object = Json::object();
  if (rworkers.count > 0) object["count"] = rworkers.count;
  object["threads"] = AutoOr(rworkers.threads);
  object["kv_memory"] = FormatMemoryAmount(rworkers.kv_memory);
  object["block_tokens"] = rworkers.block_tokens;
  object["kv_dtype"] = KvDtypeToJson(rworkers.kv_dtype);
  object["kernel"] = rworkers.kernel;
  if (rworkers.count == 0) object["hosts"] = HostsToJson(rworkers.hosts);
  return object;
}

}  // namespace

std::string DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kAuto:
      return "auto";
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
  }
  return "unknown";
}

std::string ConfigToJson(const Config& config) {
  const VerbsOptions& verbs = config.transport.verbs;
  Json document = {
      {"model",
       {{"path", config.model.path},
        {"dtype", DTypeName(config.model.dtype)},
        {"weights", config.model.weights == WeightSource::kRandom ? "random" : "checkpoint"},
        {"layers", config.model.layers},
        {"seed", config.model.seed},
        {"max_context", config.model.max_context},
        {"shape", FormatShape(config.model.shape)}}},
      {"sworker",
       {{"device", config.sworker.device},
        {"threads", AutoOr(config.sworker.threads)},
        {"listen", config.sworker.listen},
        {"pin", config.sworker.pin}}},
      {"rworkers", RWorkersToJson(config.rworkers)},
      {"pipeline",
       {{"mini_batches", config.pipeline.mini_batches},
        {"max_batch", config.pipeline.max_batch},
        {"prefill_tokens_per_step", config.pipeline.prefill_tokens_per_step}}},
      {"load_control",
       {{"enabled", config.load_control.enabled},
        {"workload_limit", AutoOr(config.load_control.workload_limit)},
        {"interval_steps", AutoOr(config.load_control.interval_steps)}}},
      {"transport",
       {{"kind", config.transport.kind},
        {"secret_file", config.transport.secret_file},
        {"heartbeat_ms", config.transport.heartbeat_ms},
        {"peer_timeout_ms", config.transport.peer_timeout_ms},
        {"spin_us", config.transport.spin_us < 0 ? Json("auto") : Json(config.transport.spin_us)},
        {"verbs",
         {{"device", verbs.device},
          {"port", verbs.port},
          {"gid_index", verbs.gid_index < 0 ? Json("auto") : Json(verbs.gid_index)},
          {"service_level", verbs.service_level},
          {"traffic_class", verbs.traffic_class}}}}},
  };
  if (!config.plan.profile.empty()) document["plan"] = {{"profile", config.plan.profile}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fastdecode
