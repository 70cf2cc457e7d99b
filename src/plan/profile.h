// What was measured of a deployment's parts, and the JSON file that keeps it.
//
// A profile has one entry a model (shape, dtype, KV format, device), since each time in
// it belongs to one; times of the S-part were taken while rows travelled and R-workers
// computed, as in service. Everything is in seconds, bytes, rows and tokens. Pure values:
// no I/O but LoadProfile and SaveProfile, no torch. docs/planning.md is this file's page.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/config.h"
#include "plan/curve.h"

namespace fastdecode::plan {

inline constexpr int kProfileSchema = 2;

inline constexpr char kAnyTransport[] = "any";  // not known yet, or times that belong to none (data sheets)

// What a time of the S-part or of an R-worker depends on, layers' number left out.
struct ModelKey {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  std::string dtype;   // of the S-part: "f32", "f16", "bf16"
  std::string device;  // "cpu", "cuda"
  int threads = 0;     // that compute on a CPU; 0: not a CPU
  std::string kv_keys = "f16";
  std::string kv_values = "f16";
  std::string transport = kAnyTransport;  // that carries the rows, as TransportsText says
  friend bool operator==(const ModelKey&, const ModelKey&) = default;
};
// dtype "auto" settled as the S-worker does; threads: SWorkerThreads; transport "auto", which only
// the R-workers' handshake settles: any.
ModelKey KeyOf(const Config& config);
std::string Describe(const ModelKey& key);  // "hidden 4096, ..., bf16 on cpu, KV f16/f16"

// "shm"; "shm+tcp" where not all R-workers are reached over the same; kAnyTransport of none.
std::string TransportsText(const std::set<std::string>& kinds);
// Whether times over one may be taken for the other: equal, or one of them any.
bool SameTransport(const std::string& a, const std::string& b);

// The R-part of one layer of one mini-batch on one R-worker, in its kernels:
// seconds_per_call + rows * seconds_per_row + cached tokens * seconds_per_token.
struct RPartTimes {
  double seconds_per_token = 0;  // the paper's R, of this R-worker: above 0
  double seconds_per_row = 0;    // the append and what a sequence costs whatever its length
  double seconds_per_call = 0;   // threads' start and end
  double spread = 0;             // the largest error of this line at what was measured, as a share
};

// The same as it was measured, for what the line does not follow (caches): seconds by
// cached tokens of each of `rows` sequences.
struct AttendCurve {
  double rows = 0;
  Curve by_cached;
};

// One exchange with an R-worker: Q, K, V there and O back, less the time in its kernels.
// `at`: bytes of both messages together.
struct RWorkerProfile {
  std::string address;
  std::string kernel;  // "avx512", ...
  int threads = 0;
  RPartTimes attend;
  std::vector<AttendCurve> attended;  // ascending rows; empty: the line alone
  Curve wire;
};

struct ModelProfile {
  std::string name;  // of the model's folder: for people only
  ModelKey key;
  int mini_batches = 0;  // that took turns while it was measured
  // By rows of one mini-batch:
  Curve layer;     // T(B): one layer's S-part, without copies. Required
  Curve copy_in;   // O of a layer to the device and its conversion from f16
  Curve copy_out;  // Q, K, V of a layer from the device, checked, as f16
  Curve outer;     // of a pass: embedding, final norm, head and sampling. Not a layer's
  Curve serving;   // of a pass: plan, tokens to their clients, what else the S-worker does
  // By tokens of one batch of prompts:
  Curve prefill;                         // one layer but the last: computed, copied and pushed
  Curve prefill_outer;                   // the rest: embedding, the last layer's K and V, acknowledgement
  std::vector<RWorkerProfile> rworkers;  // at least one
};

struct MachineProfile {
  std::string hostname, cpu, kernel, device;
  int cpus = 0;
  int64_t memory_bytes = 0;
  double read_bytes_per_s = 0;  // of this machine's memory, one thread; 0: not measured
};

struct Profile {
  MachineProfile machine;
  std::string fastdecode_version, libtorch_version;
  double measured_seconds = 0;  // how long measuring took
  std::vector<ModelProfile> models;
};

// The entry of `key`; without a transport the only one there is. An error lists what the
// profile has and what differs.
Result<const ModelProfile*> FindModel(const Profile& profile, const ModelKey& key);

// From text of a file called `name` (for messages), or from a file of at most 1 MiB. An
// error starts with the name and gives the key, what was found and what was expected.
Result<Profile> ParseProfile(const std::string& text, const std::string& name);
Result<Profile> LoadProfile(const std::string& path);
std::string ProfileToJson(const Profile& profile);  // pretty; ParseProfile of it gives the same
Status SaveProfile(const Profile& profile, const std::string& path);

// Whether the numbers can be true: what ParseProfile asks of a file, for one made here.
Status CheckProfile(const Profile& profile);

}  // namespace fastdecode::plan
