// One JSON file describes a deployment; it is parsed once into these structs,
// validated there, and passed by const reference. docs/config.md has a line a key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/model_config.h"

namespace fastdecode {

enum class DType { kAuto, kF32, kF16, kBf16 };
enum class WeightSource { kCheckpoint, kRandom };

struct ModelOptions {
  std::string path;  // absolute after parsing
  DType dtype = DType::kAuto;
  WeightSource weights = WeightSource::kCheckpoint;
  int layers = 0;       // 0: all that config.json names
  uint64_t seed = 0;    // of random weights
  int max_context = 0;  // 0: the model's; never above it
};

struct SWorkerOptions {
  std::string device = "cpu";  // "cpu" or "cuda:N"
  int threads = 0;             // 0: the CPUs that this process may use, less the R-workers' of the same host
  std::string listen = "tcp://127.0.0.1:7100";
};

struct RWorkerHost {
  std::string address;   // HOST:PORT
  std::string ssh;       // empty: a local process
  int threads = 0;
  int64_t kv_memory = 0;  // bytes
};

struct RWorkersOptions {
  int count = 0;  // this many on this host; or
  std::vector<RWorkerHost> hosts;
  int threads = 0;                    // default of a host's threads; 0: auto
  int64_t kv_memory = int64_t{1} << 30;  // bytes, default of a host's
  int block_tokens = 32;
  std::string kv_dtype = "f16";  // only f16 in this build
};

struct PipelineOptions {
  int mini_batches = 2;
  int max_batch = 64;  // sequences in flight over all mini-batches
  int prefill_tokens_per_step = 4096;
};

struct LoadControlOptions {
  bool enabled = true;
  int64_t workload_limit = 0;  // per R-worker, cached tokens over all mini-batches; 0: auto
  int interval_steps = 0;      // 0: auto
};

struct TransportOptions {
  std::string kind = "auto";  // auto (means tcp) or tcp
  std::string secret_file = "cluster.secret";  // absolute after parsing
  int heartbeat_ms = 500;
  int peer_timeout_ms = 3000;
};

struct Config {
  std::string path;  // absolute path of the file
  ModelOptions model;
  SWorkerOptions sworker;
  RWorkersOptions rworkers;
  PipelineOptions pipeline;
  LoadControlOptions load_control;
  TransportOptions transport;
  // Derived: the model's config.json with `layers` and `max_context` applied.
  ModelConfig model_config;
  int max_context = 0;
};

// Reads, validates and completes a config. An error names the key, what was found,
// what was expected and, for an unknown key, the nearest known one.
Result<Config> LoadConfig(const std::string& path);

// The effective config as pretty JSON, every default filled in.
std::string ConfigToJson(const Config& config);

// "8GiB", "512 MiB", "1024" -> bytes.
Result<int64_t> ParseSize(const std::string& text);

}  // namespace fastdecode
