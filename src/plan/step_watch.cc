#include "plan/step_watch.h"

#include <algorithm>
#include <utility>

namespace fastdecode::plan {

StepWatch::StepWatch(ModelProfile profile, const Deployment& deployment)
    : profile_(std::move(profile)), deployment_(deployment), last_(static_cast<size_t>(deployment.mini_batches)) {}

void StepWatch::PassDone(int mini_batch, int64_t begin_ns, int64_t end_ns, int rows, int64_t workload, bool prefilled) {
  last_[static_cast<size_t>(mini_batch)] = {end_ns, rows};
  if (prefilled || rows == 0 || end_ns <= begin_ns) return;
  // The mini-batches that ended a pass meanwhile took turns with this one.
  Deployment now = deployment_;
  now.batch = now.mini_batches = 0;
  for (const Last& other : last_) {
    if (other.end_ns < begin_ns) continue;
    now.batch += other.rows;
    ++now.mini_batches;
  }
  const int fullest = (now.batch + now.rworkers - 1) / now.rworkers;
  const StepPrediction step = PredictStep(profile_, now, static_cast<double>(workload) / fullest);
  const double seconds = static_cast<double>(end_ns - begin_ns) / 1e9;
  ++passes_;
  predicted_.step_s += step.step_s;
  predicted_.stages_s += step.stages_s;
  predicted_.kernels_s += step.kernels_s;
  predicted_.workload += static_cast<double>(workload);
  step_s_ += seconds;
  tokens_ += now.batch;
  workload_ += static_cast<double>(workload);
}

StepPrediction StepWatch::predicted() const {
  StepPrediction mean = predicted_;
  if (passes_ == 0) return mean;
  const auto count = static_cast<double>(passes_);
  mean.tokens_per_s = tokens_ / predicted_.step_s;
  mean.step_s /= count;
  mean.stages_s /= count;
  mean.kernels_s /= count;
  mean.workload /= count;
  return mean;
}

double StepWatch::measured_step_s() const { return passes_ == 0 ? 0 : step_s_ / static_cast<double>(passes_); }
double StepWatch::measured_tokens_per_s() const { return step_s_ > 0 ? tokens_ / step_s_ : 0; }
double StepWatch::measured_workload() const { return passes_ == 0 ? 0 : workload_ / static_cast<double>(passes_); }

void StepWatch::Reset() {
  passes_ = 0;
  predicted_ = {};
  step_s_ = tokens_ = workload_ = 0;
}

}  // namespace fastdecode::plan
