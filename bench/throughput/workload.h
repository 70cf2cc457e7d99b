// What the benchmark asks for: lengths and arrivals of its requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/api/api_messages.h"
#include "common/base/status.h"

namespace fastdecode {

struct WorkloadOptions {
  std::string trace;      // empty: fixed lengths
  int prompt_tokens = 0;  // of fixed lengths
  int output_tokens = 0;
  int requests = 0;   // 0: the whole trace, or 2 * batch of fixed lengths
  int batch = 0;      // requests in flight; 0: the server's max_batch
  double rate = 0;    // with a trace: its arrivals, this many times as fast; 0: closed loop at `batch`
  uint64_t seed = 1;  // of the prompts' ids
};

struct BenchRequest {
  double arrival_s = 0;  // after the start; ignored in a closed loop
  int prompt_tokens = 0;
  int output_tokens = 0;
};

struct Workload {
  std::vector<BenchRequest> requests;
  int in_flight = 0;  // closed loop: this many; 0: by arrival
};

// A trace's lengths are clipped to the context: prompt = min(p, context / 2),
// output = min(o, context - prompt), each at least 1. Fixed lengths that do not fit are an error.
Result<Workload> MakeWorkload(const WorkloadOptions& options, const ServerInfo& server);

// Ids that are uniform over the vocabulary: the same for the same (seed, index).
std::vector<int32_t> RandomPrompt(uint64_t seed, size_t index, int tokens, int64_t vocab_size);

}  // namespace fastdecode
