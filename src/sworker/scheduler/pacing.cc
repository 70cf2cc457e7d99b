#include "sworker/scheduler/pacing.h"

#include <algorithm>
#include <cmath>

namespace fastdecode {
namespace {

// How far the peak may pass the steady state's W when no measured limit is given. Short
// outputs behind long prompts barely change W as they age, and start all at once.
constexpr double kPeakTolerance = 1.05;

}  // namespace

Pace ComputePace(const Books& books) {
  const Demand& demand = books.demand;
  if (demand.sequences <= 0) return {.rate = 1.0, .burst = static_cast<double>(books.options.max_batch)};
  double limit = 0;
  double blocks = 0;
  for (const RWorker& rworker : books.rworkers) {
    if (!rworker.live) continue;
    limit += static_cast<double>(rworker.limit);
    blocks += static_cast<double>(rworker.total_blocks);
  }
  const double n = static_cast<double>(demand.sequences);
  Pace pace;
  pace.rate = n * std::min({books.options.max_batch / demand.decode_steps, limit / demand.workload,
                            blocks / demand.block_steps});

  // If `level` sequences start now and those up to `full` follow at the rate, the first ones'
  // end sees full * final - (full - level)^2 / (2 rate) cached tokens: solved for `level`.
  const double full = std::min(n, pace.rate * demand.decode_steps / n);
  const double steady = kPeakTolerance * pace.rate * demand.workload / n;
  const double target = books.options.workload_limit > 0 ? limit : std::min(limit, steady);
  const double excess = std::max(0.0, full * demand.final_tokens / n - target);
  pace.burst = full - std::sqrt(2 * pace.rate * excess);
  return pace;
}

Pacer::Pacer(int interval_rounds) : interval_rounds_(std::max(1, interval_rounds)) {}

void Pacer::OnRound(double rate) {
  if (++rounds_ < interval_rounds_) return;
  tokens_ += rate * rounds_;
  rounds_ = 0;
}

void Pacer::Trim(double rate) { tokens_ = std::min(tokens_, std::max(1.0, rate * interval_rounds_)); }

}  // namespace fastdecode
