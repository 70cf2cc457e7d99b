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
  std::string path;  // the model's folder, absolute after parsing
  DType dtype = DType::kAuto;
  WeightSource weights = WeightSource::kCheckpoint;
  int layers = 0;        // after parsing the number in use; "auto": all that config.json names
  uint64_t seed = 0;     // of random weights
  int max_context = 0;   // after parsing the tokens in use; "auto": the model's; never above it
  AttentionShape shape;  // after parsing that of the layers in use; a config that names another is refused
  friend bool operator==(const ModelOptions&, const ModelOptions&) = default;
};

struct SWorkerOptions {
  std::string device = "cpu";  // "cpu" or "cuda:N"
  int threads = 0;             // 0: the CPUs that this process may use, less the R-workers' of the same host
  std::string listen = "tcp://127.0.0.1:7100";  // tcp://HOST:PORT; port 0: any free one
  bool pin = true;  // computing threads to CPUs; the launch script says false where a host has more threads than CPUs
  friend bool operator==(const SWorkerOptions&, const SWorkerOptions&) = default;
};

// An amount of memory: bytes, or a share of what its host has free when it is taken, which
// only that host can tell. One of the two is 0.
struct MemoryAmount {
  int64_t bytes = 0;
  int percent = 0;
  friend bool operator==(const MemoryAmount&, const MemoryAmount&) = default;
};
// The rest is for the process itself, its message buffers and the system.
inline constexpr int kMaxMemoryPercent = 95;

struct RWorkerHost {
  std::string address;  // HOST:PORT that the S-worker dials
  std::string listen;   // HOST:PORT that the R-worker binds; after parsing the address where none was given
  std::string ssh;      // [user@]host that the launch script reaches it by; empty: a local process
  std::string bin;      // absolute folder of the programs there; empty: the same as here
  int threads = 0;      // 0: auto, the CPUs that the process may use
  MemoryAmount kv_memory;
  friend bool operator==(const RWorkerHost&, const RWorkerHost&) = default;
};

// How the cache holds keys and values: names of kernels/kv_codecs.h.
struct KvDtype {
  std::string keys = "f16";
  std::string values = "f16";
  friend bool operator==(const KvDtype&, const KvDtype&) = default;
};

struct RWorkersOptions {
  int count = 0;  // this many on this host; or
  std::vector<RWorkerHost> hosts;
  int threads = 0;                                    // default of a host's threads; 0: auto
  MemoryAmount kv_memory{.bytes = int64_t{1} << 30};  // default of a host's
  int block_tokens = 128;
  KvDtype kv_dtype;
  std::string kernel = "auto";  // of attention; a name is for the R-workers to know or refuse
  friend bool operator==(const RWorkersOptions&, const RWorkersOptions&) = default;
};

struct PipelineOptions {
  int mini_batches = 2;
  int max_batch = 64;  // sequences in flight over all mini-batches
  int prefill_tokens_per_step = 4096;
  friend bool operator==(const PipelineOptions&, const PipelineOptions&) = default;
};

struct LoadControlOptions {
  bool enabled = true;
  int64_t workload_limit = 0;  // per R-worker, cached tokens over all mini-batches; 0: auto
  int interval_steps = 0;      // 0: auto
  friend bool operator==(const LoadControlOptions&, const LoadControlOptions&) = default;
};

// RDMA: which device the S-worker uses and how its packets are marked.
struct VerbsOptions {
  std::string device = "auto";  // the first with an active port
  int port = 1;                 // of the device
  int gid_index = -1;           // -1: auto, by type
  int service_level = 0;        // InfiniBand's, or the priority of RoCE; both ends use the S-worker's
  int traffic_class = 0;        // of RoCE and of InfiniBand across subnets; both ends use the S-worker's
  friend bool operator==(const VerbsOptions&, const VerbsOptions&) = default;
};

struct TransportOptions {
  std::string kind = "auto";                   // auto, or the one to use
  std::string secret_file = "cluster.secret";  // absolute after parsing
  int heartbeat_ms = 500;
  int peer_timeout_ms = 3000;
  int spin_us = -1;  // polled before sleeping, where that can be chosen; -1: auto
  VerbsOptions verbs;
  friend bool operator==(const TransportOptions&, const TransportOptions&) = default;
};

struct PlanOptions {
  std::string profile;  // absolute path of fastdecode-plan's profile; empty: none
  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

struct Config {
  std::string path;  // absolute path of the file
  ModelOptions model;
  SWorkerOptions sworker;
  RWorkersOptions rworkers;
  PipelineOptions pipeline;
  LoadControlOptions load_control;
  TransportOptions transport;
  PlanOptions plan;
  // Derived: the model's config.json with `layers` and `max_context` applied.
  ModelConfig model_config;
  int max_context = 0;  // tokens of one sequence, prompt and output; equals model.max_context
};

// Reads, validates and completes a config; needs the model's config.json, nothing else
// of the deployment. An error starts with the file's path and names the key, what was
// found, what was expected and, for an unknown key, the nearest known one.
// kNotFound: a file is missing. kUnimplemented: known by name, not in this build.
Result<Config> LoadConfig(const std::string& path);

// The effective config as pretty JSON, every default filled in, every path absolute:
// LoadConfig of it gives the same config.
std::string ConfigToJson(const Config& config);

// sworker.threads, or for "auto" the CPUs that this process may use less the threads of
// the R-workers on this host, at least 1.
int SWorkerThreads(const Config& config);

// "8GiB", "512 MiB", "1024" -> bytes. kInvalidArgument otherwise, and above 2^63 - 1.
Result<int64_t> ParseSize(const std::string& text);
// The shortest exact way: 8589934592 -> "8GiB", 1000 -> "1000".
std::string FormatSize(int64_t bytes);

// A size, or "80%" of the free memory. kInvalidArgument otherwise, and out of 1 % to kMaxMemoryPercent.
Result<MemoryAmount> ParseMemoryAmount(const std::string& text);
std::string FormatMemoryAmount(const MemoryAmount& amount);

// The names that a config uses: "auto", "f32", "f16", "bf16".
std::string DTypeName(DType dtype);

}  // namespace fastdecode
