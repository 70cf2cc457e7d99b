// What is simulated: a deployment, requests, and what goes wrong when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/traces/request_trace.h"
#include "sworker/scheduler/scheduler.h"

namespace fastdecode::sim {

using Nanos = int64_t;  // since the start of the simulation

struct SimRequest {
  Nanos arrival = 0;
  int32_t prompt = 0;
  int32_t max_tokens = 0;
  int32_t tokens = 0;  // that it really makes: 1 .. max_tokens
};

struct Fault {
  enum class Kind {
    kLost,  // the R-worker is gone; after `for_s` it is back, empty
    kSlow,  // each of its R-parts takes `factor` times as long
  };
  Kind kind = Kind::kLost;
  int rworker = 0;
  double at_s = 0;
  double for_s = 0;  // 0: for ever
  double factor = 1;
};

// "3@12.5" or "3@12.5+2" (R-worker 3 is lost at 12.5 s, and back 2 s later).
Result<Fault> ParseLoss(const std::string& text);
// "3x2.5", "3x2.5@10", "3x2.5@10+4" (R-worker 3 takes 2.5 times as long from 10 s on, for 4 s).
Result<Fault> ParseSlowdown(const std::string& text);

struct SimOptions {
  SchedulerOptions scheduler;
  int layers = 1;
  int layers_per_event = 1;    // all of them: an event a (step, R-worker), for large clusters
  int64_t kv_blocks = 0;       // of each R-worker
  double device_jitter = 0;    // standard deviation of the logarithm of each time; means stay
  double rworker_jitter = 0;   // the same
  double wire_on_rworker = 0;  // share of an exchange's time in which the R-worker can't compute
  double straggling = 0;       // share of R-parts, drawn, that take straggler_factor times as long
  double straggler_factor = 1;
  int in_flight = 0;  // 0: requests come when they say; else so many are kept with the scheduler
  std::vector<Fault> faults;
  // What is measured: from the moment when this share of the requests has ended to that.
  double measure_from = 0, measure_to = 1;
  uint64_t seed = 1;
};

struct RequestOptions {
  std::string trace;      // empty: fixed lengths
  int prompt_tokens = 0;  // of fixed lengths
  int output_tokens = 0;
  int64_t requests = 0;     // a trace is repeated in order until there are so many; 0: once
  double rate = 0;          // a trace's arrivals, this many times as fast; 0: all there from the start
  double shortest_end = 1;  // sequences really make [this, 1] of their tokens, drawn
  int max_context = 0;
  uint64_t seed = 1;
};
Result<std::vector<SimRequest>> MakeRequests(const RequestOptions& options);

}  // namespace fastdecode::sim
