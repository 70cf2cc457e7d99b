#include "plan/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace fastdecode::plan {
namespace {

double Ratio(double predicted, double measured) { return measured > 0 ? predicted / measured : 0; }

bool Leaves(double ratio) { return ratio < 1 / (1 + kTolerance) || ratio > 1 + kTolerance; }

[[gnu::format(printf, 2, 3)]] void Append(std::string* out, const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  *out += line;
}

// The part whose error is the most seconds of a step.
std::string PartThatDiffers(const Comparison& c) {
  const double device = c.predicted.stages_s - c.measured.device_busy_s;
  const double rworker = c.predicted.kernels_s - c.measured.rworker_busy_s;
  const double rest = (c.predicted.step_s - std::max(c.predicted.stages_s, c.predicted.kernels_s)) -
                      (c.measured.step_s - std::max(c.measured.device_busy_s, c.measured.rworker_busy_s));
  const double most = std::max({std::abs(device), std::abs(rworker), std::abs(rest)});
  const auto slower = [](double error) { return error < 0 ? "slower" : "faster"; };
  if (most == std::abs(device)) {
    return std::string("T: the S-worker's device is ") + slower(device) + " than it was when the profile was measured";
  }
  if (most == std::abs(rest)) {
    return std::string("what is neither T nor R (wire, copies, scheduling, other processes) takes ") +
           (rest < 0 ? "longer" : "less") + " than in the profile";
  }
  if (Leaves(c.workload_ratio)) {
    return std::string("W: the R-workers read ") + (c.workload_ratio < 1 ? "more" : "fewer") +
           " cached tokens than the lengths asked for suggest";
  }
  return std::string("R: the R-workers' kernels are ") + slower(rworker) + " than when the profile was measured";
}

}  // namespace

Comparison Compare(const StepPrediction& predicted, const MeasuredSteps& measured) {
  Comparison c;
  c.predicted = predicted;
  c.measured = measured;
  c.tokens_ratio = Ratio(predicted.tokens_per_s, measured.tokens_per_s);
  c.device_ratio = Ratio(predicted.stages_s, measured.device_busy_s);
  c.rworker_ratio = Ratio(predicted.kernels_s, measured.rworker_busy_s);
  c.workload_ratio = Ratio(predicted.workload, measured.workload);
  if (c.tokens_ratio > 0 && Leaves(c.tokens_ratio)) c.differs = PartThatDiffers(c);
  return c;
}

std::string Describe(const Comparison& c) {
  std::string out;
  Append(&out, "%-22s %10s %10s %10s\n", "plan against actual", "predicted", "measured", "ratio");
  Append(&out, "%-22s %10.1f %10.1f %10.2f\n", "tokens/s", c.predicted.tokens_per_s, c.measured.tokens_per_s,
         c.tokens_ratio);
  Append(&out, "%-22s %10.2f %10.2f %10.2f\n", "step, ms", c.predicted.step_s * 1e3, c.measured.step_s * 1e3,
         Ratio(c.predicted.step_s, c.measured.step_s));
  Append(&out, "%-22s %10.2f %10.2f %10.2f\n", "T: S-part a step, ms", c.predicted.stages_s * 1e3,
         c.measured.device_busy_s * 1e3, c.device_ratio);
  Append(&out, "%-22s %10.2f %10.2f %10.2f\n", "R: R-part a step, ms", c.predicted.kernels_s * 1e3,
         c.measured.rworker_busy_s * 1e3, c.rworker_ratio);
  Append(&out, "%-22s %10.0f %10.0f %10.2f\n", "W, cached tokens", c.predicted.workload, c.measured.workload,
         c.workload_ratio);
  Append(&out, "%-22s %10s\n", "bound by", c.predicted.bound.c_str());
  if (!c.differs.empty()) Append(&out, "off by over %.0f %%: %s\n", kTolerance * 100, c.differs.c_str());
  return out;
}

}  // namespace fastdecode::plan
