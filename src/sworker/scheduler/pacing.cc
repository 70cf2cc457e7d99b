#include "sworker/scheduler/pacing.h"

#include <algorithm>
#include <cmath>

namespace fastdecode {
namespace {

// Standard deviation of the decode steps over their mean, from which on lengths spread the
// ages well enough by themselves.
constexpr double kEqualLengths = 0.15;

// How far the peak may pass the steady state's W when no measured limit is given. Short
// outputs behind long prompts barely change W as they age, and start all at once.
constexpr double kPeakTolerance = 1.05;

double Speeds(const Books& books) {
  double sum = 0;
  for (const RWorker& rworker : books.rworkers) sum += rworker.live ? rworker.speed : 0;
  return sum;
}

bool NearlyEqual(const Demand& demand) {
  const double n = static_cast<double>(demand.sequences);
  const double mean = demand.decode_steps / n;
  return demand.squared_steps / n - mean * mean < kEqualLengths * kEqualLengths * mean * mean;
}

}  // namespace

Pacer::Pacer(const SchedulerOptions& options) : interval_rounds_(std::max(1, options.interval_steps)) {}

bool Pacer::Paces(const Books& books) const {
  const Demand& demand = books.demand;
  // With nothing in flight no round would ever bring a token.
  if (!books.options.load_control || !books.options.pacing || demand.sequences == 0 || books.in_flight == 0) {
    return false;
  }
  if (!NearlyEqual(demand)) return false;
  const double speeds = Speeds(books);
  double limit = 0;
  double rate = 0;
  for (const RWorker& rworker : books.rworkers) {
    if (!rworker.live) continue;
    limit += static_cast<double>(rworker.limit);
    rate += Rate(books, rworker, speeds) * books.options.mini_batches;
  }
  // If `level` sequences start now and those up to `full` follow at the rate, the first ones'
  // end sees full * final - (full - level)^2 / (2 rate) cached tokens: solved for `level`.
  const double n = static_cast<double>(demand.sequences);
  const double full = std::min(n, rate * demand.decode_steps / n);
  const double steady = kPeakTolerance * rate * demand.workload / n;
  const double target = books.options.workload_limit > 0 ? limit : std::min(limit, steady);
  const double excess = std::max(0.0, full * demand.final_tokens / n - target);
  const double level = full - std::sqrt(2 * rate * excess);
  return static_cast<double>(books.in_flight) >= level;
}

double Pacer::Rate(const Books& books, const RWorker& rworker, double speeds) const {
  const Demand& demand = books.demand;
  if (demand.sequences == 0) return 1;
  const double n = static_cast<double>(demand.sequences);
  const double slots = books.options.max_batch * rworker.speed / speeds;
  // W saws: a pair's peak lies half a sequence above its mean.
  const double limit = static_cast<double>(rworker.limit);
  const double mean_limit = std::max(limit / 2, limit - books.options.mini_batches * demand.final_tokens / n / 2);
  return n / books.options.mini_batches *
         std::min({slots / demand.decode_steps, mean_limit / demand.workload,
                   static_cast<double>(rworker.total_blocks) / demand.block_steps});
}

void Pacer::OnRound(Books& books) {
  if (++rounds_ < interval_rounds_) return;
  const double speeds = Speeds(books);
  for (RWorker& rworker : books.rworkers) {
    if (!rworker.live) continue;
    const double earned = Rate(books, rworker, speeds) * rounds_;
    for (Pair& pair : rworker.pairs) pair.start_tokens += earned;
  }
  rounds_ = 0;
}

void Pacer::Refund(Books& books, const Sequence& s) {
  Pair& pair = books.pair_of(s);
  if (s.phase == Phase::kSpent) return;
  const int64_t made = s.phase == Phase::kDecoding ? pair.tracker.step() - s.load.start : 0;
  pair.start_tokens += 1 - static_cast<double>(s.workload_of(made)) / static_cast<double>(s.total_workload());
}

void Pacer::Trim(Books& books) const {
  const double speeds = Speeds(books);
  for (RWorker& rworker : books.rworkers) {
    if (!rworker.live) continue;
    const double most = std::max(1.0, Rate(books, rworker, speeds) * interval_rounds_);
    for (Pair& pair : rworker.pairs) pair.start_tokens = std::min(pair.start_tokens, most);
  }
}

}  // namespace fastdecode
