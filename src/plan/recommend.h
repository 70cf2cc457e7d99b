// fastdecode-plan recommend: from a model, a profile and wishes to a deployment, with the
// reason for each choice and what falls short. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "plan/hardware.h"
#include "plan/performance_model.h"

namespace fastdecode::plan {

struct Wishes {
  ModelConfig model;
  ModelProfile times;
  int sockets = 1;  // R-workers that may be used, one each
  int mini_batches = 2;
  double prompt_tokens = 0;  // means
  double output_tokens = 1024;
  int64_t max_context = 0;    // tokens of the longest sequence; 0: prompt and output tokens together
  double latency_s = 0;       // of a whole sequence at most; 0: none asked for
  double tokens_per_s = 0;    // at least; 0: none asked for
  int batch = 0;              // sequences in flight; 0: choose
  int64_t device_memory = 0;  // bytes of the S-worker's device; 0: not asked
  int64_t socket_memory = 0;  // bytes of one R-worker's KV cache at most; 0: not asked
  int block_tokens = 128;
  double device_price = 0;  // of the S-worker's node and of a socket, of an hour, in any money; 0: not asked
  double socket_price = 0;
  double device_bytes_per_s = 0;  // of the device's memory, for decoding on it alone; 0: not known
};

struct Option {
  std::string name;
  int sockets = 0;
  int batch = 0;
  double step_s = 0;
  double tokens_per_s = 0;
  std::string bound;
  double tokens_per_money = 0;  // 0: no prices
};

struct Recommendation {
  Deployment deployment;         // what to run
  double balanced_rworkers = 0;  // the paper's P for that batch
  SteadyPrediction steady;
  int64_t max_context = 0;
  int64_t workload_limit = 0;
  int interval = 0;  // F
  MemoryNeeds memory;
  std::vector<std::string> reasons;
  std::vector<std::string> shortfalls;  // wishes that can't be had, and by how much
  std::vector<Option> options;          // by sockets, and the device alone
  std::vector<Option> what_if;          // one thing more or faster
};

// kResourceExhausted: no deployment at all (the weights don't fit, or not one sequence).
Result<Recommendation> Recommend(const Wishes& wishes);

std::string Table(const Wishes& wishes, const Recommendation& recommendation);
nlohmann::ordered_json ToJson(const Wishes& wishes, const Recommendation& recommendation);

// A deployment's config. `hosts`: addresses of the R-workers, empty: that many on this host.
struct ConfigChoice {
  std::string model_path, device, dtype, weights, profile;
  std::vector<std::string> hosts;
};
nlohmann::ordered_json MakeConfig(const Wishes& wishes, const Recommendation& recommendation,
                                  const ConfigChoice& choice);

}  // namespace fastdecode::plan
