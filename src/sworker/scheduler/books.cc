#include "sworker/scheduler/books.h"

#include <algorithm>
#include <cmath>

namespace fastdecode {

const LoadTracker& Pair::Projection() {
  if (projection_stale_) {
    projection_ = tracker;
    const int64_t step = tracker.step();
    for (const Sequence* sequence : pending) {
      if (sequence->decode_steps == 0) continue;
      projection_.Add(
          {.start = step, .end = step + sequence->decode_steps - 1, .tokens_at_start = sequence->prompt + 1});
    }
    projection_stale_ = false;
  }
  return projection_;
}

int64_t Pair::CommittedPeak() const { return std::max(planned_workload, tracker.Peak()); }

void Demand::Add(const Sequence& sequence, int64_t blocks, int sign) {
  if (sequence.decode_steps == 0) return;
  sequences += sign;
  decode_steps += sign * static_cast<double>(sequence.decode_steps);
  final_tokens += sign * static_cast<double>(sequence.final_tokens());
  workload += sign * static_cast<double>(sequence.total_workload());
  block_steps += sign * static_cast<double>(blocks * sequence.decode_steps);
}

int64_t Books::LimitOf(int64_t kv_blocks, double speed) const {
  if (options.workload_limit > 0) {
    return static_cast<int64_t>(std::floor(static_cast<double>(options.workload_limit) * speed));
  }
  // B(S + F)/2 over the R-workers, S = max_context, and F the interval at which each pair
  // gets one sequence at a time: F = S * pairs / B. Without the second term a pair of few
  // sequences could never be full.
  const double context = options.max_context;
  const double steady =
      0.5 * context * (static_cast<double>(options.max_batch) / options.num_rworkers + options.mini_batches) * speed;
  const int64_t cached = kv_blocks * options.block_tokens;
  const int64_t largest = std::min<int64_t>(options.max_context, cached);
  return std::max(largest, std::min(cached, static_cast<int64_t>(steady)));
}

bool Books::FitsEmpty(const RWorker& rworker, const Sequence& sequence) const {
  return Blocks(sequence.tokens) <= rworker.total_blocks &&
         (!options.load_control || sequence.final_tokens() <= rworker.limit);
}

}  // namespace fastdecode
