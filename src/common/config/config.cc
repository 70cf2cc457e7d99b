#include "common/config/config.h"

#include <filesystem>
#include <map>

#include "common/config/address.h"
#include "common/config/json_file.h"
#include "common/config/json_reader.h"
#include "kernels/kv_codecs.h"

namespace fastdecode {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kMaxThreads = 4096;
constexpr int kMaxRWorkers = 256;
constexpr int64_t kMinKvBytes = int64_t{1} << 20;
constexpr int64_t kMaxKvBytes = int64_t{1} << 46;

const json kEmptyObject = json::object();

// The object under `key`, or an empty one, so that an absent section takes its defaults.
const json& Section(ObjectReader& root, const std::string& key) {
  const json* section = root.Find(key);
  return section == nullptr ? kEmptyObject : *section;
}

std::string Absolute(const fs::path& folder, const std::string& path) {
  const fs::path normal = (folder / path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

DType DTypeOf(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  return name == "bf16" ? DType::kBf16 : DType::kAuto;
}

Status ReadModel(const json& object, const fs::path& folder, Config& config) {
  ModelOptions& model = config.model;
  ObjectReader reader(object, "model");
  std::string dtype = "auto", weights = "checkpoint", shape = "auto";
  reader.Text("path", &model.path);
  reader.Require("path");
  reader.Choice("dtype", {"auto", "f32", "f16", "bf16"}, {"int8", "int4", "fp8"}, &dtype);
  reader.Choice("weights", {"checkpoint", "random"}, {}, &weights);
  reader.AutoOrInteger("layers", 1, kMaxLayers, &model.layers);
  reader.Unsigned("seed", &model.seed);
  reader.AutoOrInteger("max_context", 1, int64_t{1} << 24, &model.max_context);
  reader.Text("shape", &shape);
  FD_RETURN_IF_ERROR(reader.Finish());

  model.path = Absolute(folder, model.path);
  model.dtype = DTypeOf(dtype);
  model.weights = weights == "random" ? WeightSource::kRandom : WeightSource::kCheckpoint;
  Result<ModelConfig> loaded = LoadModelConfig(model.path);
  if (!loaded.ok()) return {loaded.status().code(), "model.path: " + loaded.status().message()};

  config.model_config = std::move(loaded).value();
  const int model_layers = config.model_config.attention.num_layers;
  const int64_t model_context = config.model_config.max_position_embeddings;
  if (model.layers > model_layers) {
    reader.Expected("layers", "at most the " + std::to_string(model_layers) + " of the model's config.json");
  }
  if (model.max_context > model_context) {
    reader.Expected("max_context", "at most the model's max_position_embeddings, " + std::to_string(model_context));
  }
  if (model.layers == 0) model.layers = model_layers;
  if (model.max_context == 0) model.max_context = static_cast<int>(model_context);
  config.model_config.attention.num_layers = model.layers;
  config.max_context = model.max_context;
  model.shape = config.model_config.attention;
  if (shape != "auto" && shape != FormatShape(model.shape)) {
    reader.Expected("shape", "\"auto\" or that of the layers in use, \"" + FormatShape(model.shape) + "\"");
  }
  return reader.status();
}

bool IsDevice(const std::string& device) {
  if (device == "cpu") return true;
  if (!device.starts_with("cuda:")) return false;
  const std::string digits = device.substr(5);
  return !digits.empty() && digits.size() <= 2 && digits.find_first_not_of("0123456789") == std::string::npos &&
         (digits.size() == 1 || digits[0] != '0');
}

Status ReadSWorker(const json& object, SWorkerOptions& sworker) {
  ObjectReader reader(object, "sworker");
  reader.Text("device", &sworker.device);
  if (!IsDevice(sworker.device)) reader.Expected("device", "\"cpu\" or \"cuda:N\" such as \"cuda:0\"");
  reader.AutoOrInteger("threads", 1, kMaxThreads, &sworker.threads);
  reader.Text("listen", &sworker.listen);
  reader.Bool("pin", &sworker.pin);
  if (const auto address = ParseTcpUrl(sworker.listen); !address.ok()) {
    reader.Fail("listen", address.status().message());
  }
  return reader.Finish();
}

bool IsAnyAddress(const HostPort& address) { return address.host == "0.0.0.0" || address.host == "::"; }

Result<RWorkerHost> ReadHost(const json& object, const std::string& path, const RWorkersOptions& defaults) {
  RWorkerHost host;
  host.threads = defaults.threads;
  host.kv_memory = defaults.kv_memory;
  ObjectReader reader(object, path);
  reader.Text("address", &host.address);
  reader.Require("address");
  reader.Text("listen", &host.listen);
  reader.Text("ssh", &host.ssh);
  reader.Text("bin", &host.bin);
  reader.AutoOrInteger("threads", 1, kMaxThreads, &host.threads);
  reader.Memory("kv_memory", kMinKvBytes, kMaxKvBytes, &host.kv_memory);
  FD_RETURN_IF_ERROR(reader.Finish());

  const auto address = ParseHostPort(host.address);
  if (!address.ok()) {
    reader.Fail("address", address.status().message());
  } else if (address->port == 0 || IsAnyAddress(*address)) {
    reader.Expected("address", "a host and port that the S-worker can dial, so neither port 0 nor the any-address");
  }
  if (host.listen.empty()) host.listen = host.address;
  const auto listen = ParseHostPort(host.listen);
  if (!listen.ok()) {
    reader.Fail("listen", listen.status().message());
  } else if (listen->port == 0) {
    reader.Expected("listen", "a fixed port: the S-worker dials it");
  }
  // A leading dash would be an option of ssh; white space would split the remote command.
  if (host.ssh.starts_with("-") || host.ssh.find_first_of(" \t\r\n'\"\\") != std::string::npos) {
    reader.Expected("ssh", "[user@]host or an alias of ssh's own configuration");
  }
  if (!host.bin.empty() && host.bin[0] != '/') reader.Expected("bin", "an absolute path on that host");
  FD_RETURN_IF_ERROR(reader.status());
  return host;
}

Status ReadHosts(const json& array, RWorkersOptions& rworkers) {
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string path = "rworkers.hosts[" + std::to_string(i) + "]";
    FD_ASSIGN_OR_RETURN(RWorkerHost host, ReadHost(array[i], path, rworkers));
    const auto [first, is_new] = seen.emplace(ParseHostPort(host.address)->ToString(), i);
    if (!is_new) {
      return InvalidArgument(path + ".address: \"" + host.address + "\" is also rworkers.hosts[" +
                             std::to_string(first->second) + "]'s; every R-worker has an address of its own");
    }
    rworkers.hosts.push_back(std::move(host));
  }
  return OkStatus();
}

// One name for both, or {"keys": name, "values": name}.
void ReadKvDtype(ObjectReader& rworkers, KvDtype* dtype) {
  if (const std::string fault = kernels::FaultOfUserCodecs(); !fault.empty()) {
    return rworkers.Fail("kv_dtype", "this build cannot be used: " + fault, StatusCode::kInternal);
  }
  const std::vector<std::string> names = kernels::FormatNames();
  std::vector<std::string> elsewhere = {"f32", "fp8"};
  std::erase_if(elsewhere, [&](const std::string& name) { return kernels::CodeOf(name) != 0; });
  const json* value = rworkers.Find("kv_dtype");
  if (value == nullptr) return;
  if (value->is_object()) {
    ObjectReader sides(*value, rworkers.PathOf("kv_dtype"));
    sides.Choice("keys", names, elsewhere, &dtype->keys);
    sides.Choice("values", names, elsewhere, &dtype->values);
    sides.Require("keys");
    sides.Require("values");
    return rworkers.Adopt(sides.Finish());
  }
  rworkers.Choice("kv_dtype", names, elsewhere, &dtype->keys);
  dtype->values = dtype->keys;
}

Status ReadRWorkers(const json& object, RWorkersOptions& rworkers) {
  ObjectReader reader(object, "rworkers");
  reader.Integer("count", 1, kMaxRWorkers, &rworkers.count);
  reader.AutoOrInteger("threads", 1, kMaxThreads, &rworkers.threads);
  reader.Memory("kv_memory", kMinKvBytes, kMaxKvBytes, &rworkers.kv_memory);
  reader.Integer("block_tokens", 32, 1024, &rworkers.block_tokens);
  if ((rworkers.block_tokens & (rworkers.block_tokens - 1)) != 0) {
    reader.Expected("block_tokens", "a power of two from 32 to 1024");
  }
  ReadKvDtype(reader, &rworkers.kv_dtype);
  reader.Text("kernel", &rworkers.kernel);
  const json* hosts = reader.Find("hosts");
  FD_RETURN_IF_ERROR(reader.Finish());

  const bool has_count = rworkers.count > 0;
  if (has_count == (hosts != nullptr)) {
    return InvalidArgument(std::string("rworkers: found ") + (has_count ? "both" : "neither") +
                           " \"count\" and \"hosts\"; expected exactly one of them");
  }
  if (hosts == nullptr) return OkStatus();
  if (!hosts->is_array() || hosts->empty() || hosts->size() > kMaxRWorkers) {
    reader.Expected("hosts", "a list of 1 to 256 objects with an \"address\" each");
    return reader.status();
  }
  return ReadHosts(*hosts, rworkers);
}

Status ReadPipeline(const json& object, PipelineOptions& pipeline) {
  ObjectReader reader(object, "pipeline");
  reader.Integer("mini_batches", 1, 16, &pipeline.mini_batches);
  reader.Integer("max_batch", 1, 65536, &pipeline.max_batch);
  reader.Integer("prefill_tokens_per_step", 1, int64_t{1} << 20, &pipeline.prefill_tokens_per_step);
  if (pipeline.mini_batches > pipeline.max_batch) {
    reader.Fail("mini_batches", std::to_string(pipeline.mini_batches) + " mini-batches cannot share max_batch = " +
                                    std::to_string(pipeline.max_batch) + " sequences; expected at most one a sequence");
  }
  return reader.Finish();
}

Status ReadLoadControl(const json& object, LoadControlOptions& load_control) {
  ObjectReader reader(object, "load_control");
  reader.Bool("enabled", &load_control.enabled);
  reader.AutoOrInteger("workload_limit", 1, int64_t{1} << 53, &load_control.workload_limit);
  reader.AutoOrInteger("interval_steps", 1, 1000000, &load_control.interval_steps);
  return reader.Finish();
}

Status ReadVerbs(const json& object, VerbsOptions& verbs) {
  ObjectReader reader(object, "transport.verbs");
  reader.Text("device", &verbs.device);
  reader.Integer("port", 1, 255, &verbs.port);
  const json* gid_index = reader.Find("gid_index");
  if (gid_index != nullptr && *gid_index != "auto") reader.Integer("gid_index", 0, 255, &verbs.gid_index);
  reader.Integer("service_level", 0, 15, &verbs.service_level);
  reader.Integer("traffic_class", 0, 255, &verbs.traffic_class);
  return reader.Finish();
}

Status ReadTransport(const json& object, const fs::path& folder, TransportOptions& transport) {
  ObjectReader reader(object, "transport");
  std::string automatic;
  reader.Choice("kind", {"auto", "tcp", "shm", "verbs"}, {}, &transport.kind);
  reader.Text("secret_file", &transport.secret_file);
  reader.Integer("heartbeat_ms", 10, 60000, &transport.heartbeat_ms);
  reader.Integer("peer_timeout_ms", 20, 600000, &transport.peer_timeout_ms);
  if (object.value("spin_us", json()) != "auto") {
    reader.Integer("spin_us", 0, 1000, &transport.spin_us);
  } else {
    reader.Choice("spin_us", {"auto"}, {}, &automatic);
  }
  if (transport.peer_timeout_ms < 2 * transport.heartbeat_ms) {
    reader.Fail("peer_timeout_ms",
                std::to_string(transport.peer_timeout_ms) + " is too short; expected at least twice heartbeat_ms, " +
                    std::to_string(2 * transport.heartbeat_ms) + ", or one late heartbeat would end a healthy peer");
  }
  transport.secret_file = Absolute(folder, transport.secret_file);
  if (const json* verbs = reader.Find("verbs")) reader.Adopt(ReadVerbs(*verbs, transport.verbs));
  return reader.Finish();
}

Status ReadPlan(const json& object, const fs::path& folder, PlanOptions& plan) {
  ObjectReader reader(object, "plan");
  reader.Text("profile", &plan.profile);
  if (!plan.profile.empty()) plan.profile = Absolute(folder, plan.profile);
  return reader.Finish();
}

// R-workers of one machine take their shares at the same time, so together they must leave something.
Status CheckShares(const RWorkersOptions& rworkers) {
  std::map<std::string, int> percent_of;  // by the way to the machine
  percent_of[""] = rworkers.count * rworkers.kv_memory.percent;
  for (const RWorkerHost& host : rworkers.hosts) percent_of[host.ssh] += host.kv_memory.percent;
  for (const auto& [ssh, percent] : percent_of) {
    if (percent <= kMaxMemoryPercent) continue;
    return InvalidArgument("rworkers: kv_memory of the R-workers " +
                           (ssh.empty() ? std::string("of this host") : "reached by ssh " + ssh) + " is " +
                           std::to_string(percent) + "% of its free memory in all; expected at most " +
                           std::to_string(kMaxMemoryPercent) +
                           "%, since each takes its share of what is free at the start");
  }
  return OkStatus();
}

// What no section can see alone.
Status CheckTogether(const Config& config) {
  const AttentionShape& shape = config.model_config.attention;
  const KvDtype& dtype = config.rworkers.kv_dtype;
  const kernels::KvLayout layout =
      kernels::MakeLayout({kernels::CodeOf(dtype.keys), kernels::CodeOf(dtype.values)}, shape.num_kv_heads,
                          shape.head_dim, config.rworkers.block_tokens);
  const int64_t block_bytes = layout.block_bytes() * shape.num_layers;
  const auto check_memory = [&](const std::string& key, const MemoryAmount& kv_memory) {
    // How much a share comes to, the R-worker learns when it starts, and says at the handshake.
    if (kv_memory.percent > 0 || kv_memory.bytes >= block_bytes) return OkStatus();
    return InvalidArgument(key + ": found " + FormatSize(kv_memory.bytes) + "; expected at least one block of " +
                           std::to_string(config.rworkers.block_tokens) + " tokens in all layers, " +
                           std::to_string(block_bytes) + " bytes for this model");
  };
  FD_RETURN_IF_ERROR(CheckShares(config.rworkers));
  if (config.rworkers.count > 0) return check_memory("rworkers.kv_memory", config.rworkers.kv_memory);
  const HostPort listen = *ParseTcpUrl(config.sworker.listen);
  for (size_t i = 0; i < config.rworkers.hosts.size(); ++i) {
    const RWorkerHost& host = config.rworkers.hosts[i];
    const std::string path = "rworkers.hosts[" + std::to_string(i) + "]";
    FD_RETURN_IF_ERROR(check_memory(path + ".kv_memory", host.kv_memory));
    if (*ParseHostPort(host.address) == listen) {
      return InvalidArgument(path + ".address: \"" + host.address +
                             "\" is also sworker.listen; expected two addresses");
    }
  }
  return OkStatus();
}

Status ReadAll(const json& document, const fs::path& folder, Config& config) {
  ObjectReader root(document, "");
  const json& model = Section(root, "model");
  const json& sworker = Section(root, "sworker");
  const json& rworkers = Section(root, "rworkers");
  const json& pipeline = Section(root, "pipeline");
  const json& load_control = Section(root, "load_control");
  const json& transport = Section(root, "transport");
  const json& plan = Section(root, "plan");
  FD_RETURN_IF_ERROR(root.Finish());
  FD_RETURN_IF_ERROR(ReadModel(model, folder, config));
  FD_RETURN_IF_ERROR(ReadSWorker(sworker, config.sworker));
  FD_RETURN_IF_ERROR(ReadRWorkers(rworkers, config.rworkers));
  FD_RETURN_IF_ERROR(ReadPipeline(pipeline, config.pipeline));
  FD_RETURN_IF_ERROR(ReadLoadControl(load_control, config.load_control));
  FD_RETURN_IF_ERROR(ReadTransport(transport, folder, config.transport));
  FD_RETURN_IF_ERROR(ReadPlan(plan, folder, config.plan));
  return CheckTogether(config);
}

}  // namespace

Result<Config> LoadConfig(const std::string& path) {
  FD_ASSIGN_OR_RETURN(const json document, ReadJsonFile(path));
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (error) return InvalidArgument(path + ": " + error.message());
  Config config;
  config.path = absolute.string();
  const Status status = ReadAll(document, absolute.parent_path(), config);
  if (!status.ok()) return Status(status.code(), path + ": " + status.message());
  return config;
}

}  // namespace fastdecode
