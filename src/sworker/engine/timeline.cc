#include "sworker/engine/timeline.h"

#include <algorithm>
#include <cmath>

#include "common/base/clock.h"

namespace fastdecode {
namespace {

constexpr double kBucketRatio = 1.02;

int Bucket(int64_t ns, int buckets) {
  const double us = std::max(1.0, static_cast<double>(ns) / 1e3);
  return std::min(buckets - 1, static_cast<int>(std::log(us) / std::log(kBucketRatio)));
}

}  // namespace

Timeline::Timeline(int mini_batches)
    : reset_ns_(NowNs()), last_end_ns_(reset_ns_), mini_batch_passes_(static_cast<size_t>(mini_batches), 0) {}

void Timeline::TraceTo(TimelineTrace* trace) {
  std::lock_guard lock(mutex_);
  trace_ = trace;
  trace_origin_ns_ = NowNs();
}

void Timeline::Trace(int mini_batch, const StageTimes& times, const AttendedInfo* unblocked) {
  const int64_t zero = trace_origin_ns_;
  trace_->Stage(mini_batch, times.begin_ns - zero, times.copied_in_ns - zero, times.computed_ns - zero,
                times.end_ns - zero);
  if (unblocked == nullptr) return;
  // When its rows came to the R-worker only that one's clock knows: half of the wire's time before.
  const int64_t queue = std::max<int64_t>(0, unblocked->queue_ns);
  const int64_t wire = unblocked->arrived_ns - unblocked->posted_ns - unblocked->compute_ns - queue;
  const int64_t begin = unblocked->posted_ns + std::max<int64_t>(0, wire / 2) + queue - zero;
  trace_->RPart(-1, mini_batch, begin, begin + unblocked->compute_ns);
}

void Timeline::RWorkerLost(int rworker) {
  std::lock_guard lock(mutex_);
  if (trace_ != nullptr) trace_->RWorkerLost(rworker, NowNs() - trace_origin_ns_);
}

void Timeline::StageDone(int mini_batch, const StageTimes& times, const AttendedInfo* unblocked) {
  std::lock_guard lock(mutex_);
  if (trace_ != nullptr) Trace(mini_batch, times, unblocked);
  int64_t gap = std::max<int64_t>(0, times.begin_ns - last_end_ns_);
  const int64_t idle = std::min(gap, idle_in_gap_ns_);
  sums_.idle_ns += idle;
  idle_in_gap_ns_ = 0;
  gap -= idle;
  if (unblocked != nullptr) {
    const int64_t r_part = std::min(gap, unblocked->compute_ns + std::max<int64_t>(0, unblocked->queue_ns));
    sums_.r_part_ns += r_part;
    sums_.wire_ns += gap - r_part;
  } else {
    sums_.scheduler_ns += gap;
  }
  const int64_t begin = std::max(times.begin_ns, last_end_ns_);
  const int64_t copied = std::max(times.copied_in_ns, begin);
  const int64_t computed = std::max(times.computed_ns, copied);
  const int64_t end = std::max(times.end_ns, computed);
  sums_.copy_ns += (copied - begin) + (end - computed);
  sums_.s_part_ns += computed - copied;
  if (mini_batch != kPrefill) {
    sums_.s_busy_ns += end - begin;
  } else {
    last_prefill_end_ns_ = end;
  }
  last_end_ns_ = end;
}

void Timeline::SetIdle(bool idle, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (idle == (idle_since_ns_ != 0)) return;
  if (idle) {
    idle_since_ns_ = std::max(now_ns, last_end_ns_);
  } else {
    idle_in_gap_ns_ += std::max<int64_t>(0, now_ns - idle_since_ns_);
    idle_since_ns_ = 0;
  }
}

void Timeline::PassDone(int mini_batch, int64_t begin_ns, int64_t end_ns, int rows, std::span<const int64_t> workload) {
  std::unique_lock lock(mutex_);
  ++sums_.passes;
  sums_.steps = std::max(sums_.steps, ++mini_batch_passes_[static_cast<size_t>(mini_batch)]);
  sums_.decode_rows += static_cast<uint64_t>(rows);
  if (begin_ns >= reset_ns_) {  // else it is of another time
    ++whole_passes_;
    ++buckets_[static_cast<size_t>(Bucket(end_ns - begin_ns, kBuckets))];
    step_sum_ns_ += end_ns - begin_ns;
    step_max_ns_ = std::max(step_max_ns_, end_ns - begin_ns);
  }
  const int64_t busiest = workload.empty() ? 0 : *std::max_element(workload.begin(), workload.end());
  sums_.workload_peak = std::max(sums_.workload_peak, busiest);
  workload_sum_ += static_cast<double>(busiest);
  if (trace_ != nullptr) {
    trace_->Pass(mini_batch, begin_ns - trace_origin_ns_, end_ns - trace_origin_ns_, rows, busiest);
  }
  const bool prefilled = last_prefill_end_ns_ > begin_ns;
  lock.unlock();
  if (observer_) observer_({mini_batch, begin_ns, end_ns, rows, busiest, prefilled});
}

void Timeline::Prefilled(int tokens) {
  std::lock_guard lock(mutex_);
  sums_.prefill_tokens += static_cast<uint64_t>(tokens);
}

void Timeline::Totals(uint64_t wire_bytes, std::span<const int64_t> compute_ns) {
  std::lock_guard lock(mutex_);
  wire_bytes_ = wire_bytes;
  compute_ns_.assign(compute_ns.begin(), compute_ns.end());
  compute_ns_at_reset_.resize(compute_ns_.size(), 0);
}

void Timeline::F16Overflow() {
  std::lock_guard lock(mutex_);
  ++sums_.f16_overflows;
}

double Timeline::Percentile(double share) const {
  const uint64_t rank = static_cast<uint64_t>(std::ceil(share * static_cast<double>(whole_passes_)));
  uint64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank && seen > 0) {
      const double middle_us = std::pow(kBucketRatio, static_cast<double>(i) + 0.5);
      return std::min(middle_us / 1e3, static_cast<double>(step_max_ns_) / 1e6);
    }
  }
  return 0;
}

TimelineWindow Timeline::Window() const {
  std::lock_guard lock(mutex_);
  TimelineWindow window = sums_;
  const int64_t now = NowNs();
  window.wall_ns = now - reset_ns_;
  window.wire_bytes = wire_bytes_ - wire_bytes_at_reset_;
  for (size_t r = 0; r < compute_ns_.size(); ++r)
    window.r_busy_ns = std::max(window.r_busy_ns, compute_ns_[r] - compute_ns_at_reset_[r]);
  // What has not been attributed yet: the work or the gap that goes on now.
  const int64_t open = window.wall_ns - window.s_part_ns - window.r_part_ns - window.wire_ns - window.copy_ns -
                       window.scheduler_ns - window.idle_ns;
  (idle_since_ns_ != 0 ? window.idle_ns : window.s_part_ns) += std::max<int64_t>(0, open);
  if (sums_.passes > 0) window.workload_mean = workload_sum_ / static_cast<double>(sums_.passes);
  if (whole_passes_ > 0) {
    window.step_ms = {.mean = static_cast<double>(step_sum_ns_) / 1e6 / static_cast<double>(whole_passes_),
                      .p50 = Percentile(0.5),
                      .p90 = Percentile(0.9),
                      .p99 = Percentile(0.99),
                      .max = static_cast<double>(step_max_ns_) / 1e6};
  }
  return window;
}

void Timeline::Reset() {
  std::lock_guard lock(mutex_);
  sums_ = {};
  reset_ns_ = NowNs();
  last_end_ns_ = reset_ns_;
  if (idle_since_ns_ != 0) idle_since_ns_ = reset_ns_;
  idle_in_gap_ns_ = 0;
  std::fill(mini_batch_passes_.begin(), mini_batch_passes_.end(), 0);
  buckets_.fill(0);
  whole_passes_ = 0;
  step_sum_ns_ = step_max_ns_ = 0;
  workload_sum_ = 0;
  wire_bytes_at_reset_ = wire_bytes_;
  compute_ns_at_reset_ = compute_ns_;
}

}  // namespace fastdecode
