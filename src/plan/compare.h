// What was measured of a running deployment beside what the model said, and which part
// of it differs. Pure.
#pragma once

#include <string>

#include "plan/performance_model.h"

namespace fastdecode::plan {

// Means over some time. A step is one pass of every mini-batch.
struct MeasuredSteps {
  double tokens_per_s = 0;
  double step_s = 0;
  double device_busy_s = 0;   // of a step: stages of decode passes, copies included
  double rworker_busy_s = 0;  // of a step: in the kernels of the busiest R-worker
  double workload = 0;        // W of the fullest R-worker
};

struct Comparison {
  StepPrediction predicted;
  MeasuredSteps measured;
  double tokens_ratio = 0;    // predicted / measured, as all of these; 0: nothing was measured
  double device_ratio = 0;    // T: the device's stages
  double rworker_ratio = 0;   // R: the kernels
  double workload_ratio = 0;  // W
  std::string differs;        // the part that does by most; empty while all is within kTolerance
};

inline constexpr double kTolerance = 0.2;

Comparison Compare(const StepPrediction& predicted, const MeasuredSteps& measured);

// Lines for people.
std::string Describe(const Comparison& comparison);

}  // namespace fastdecode::plan
