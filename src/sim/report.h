// What a simulation has measured, and its JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/histogram.h"
#include "sim/sim_options.h"

namespace fastdecode::sim {

// Sums over what was measured. Wall time along the S-worker's critical path is shared out as
// the engine's timeline does it (src/sworker/engine/timeline.h).
struct Measurement {
  Nanos wall = 0;
  Nanos s_part = 0, r_part = 0, wire = 0, copy = 0, scheduler = 0, idle = 0;
  Nanos s_busy = 0;               // stages of decode passes
  std::vector<Nanos> r_busy;      // an R-worker's, in its kernels
  int64_t output_tokens = 0;      // of all sequences, those that were lost included
  int64_t prompt_tokens = 0;      // of sequences that have ended well
  int64_t passes = 0, steps = 0;  // of all mini-batches; of the one that made most
  int64_t decode_rows = 0;
  int64_t wire_bytes = 0;
  int64_t ended = 0, lost = 0, refused = 0;
  Histogram step, ttft, itl;
  int64_t workload_peak = 0;  // cached tokens that decoding reads in a step, on the R-worker with the most
  double workload_sum = 0;    // over passes
};

struct SimReport {
  Measurement measured;
  int64_t requests = 0;
  int64_t unfinished = 0;  // that nobody could take any more
  int64_t workload_limit = 0;
  int64_t events = 0;
  Nanos end = 0;
};

// Fields that mean the same have the names of fastdecode-bench's JSON (docs/bench.md); what
// only a simulation has is under "simulated". docs/simulator.md names them.
nlohmann::ordered_json ToJson(const SimReport& report, const SimOptions& options, const std::string& asked_for);

// A table for a terminal, from that JSON.
std::string Table(const nlohmann::ordered_json& json);

}  // namespace fastdecode::sim
