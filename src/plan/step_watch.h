// Compares each pass of a running S-worker with the model. Pure: times come with the calls.
//
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/compare.h"

namespace fastdecode::plan {

class StepWatch {
 public:
  // `deployment`: layers, mini-batches and R-workers; the load comes with the passes.
  StepWatch(ModelProfile profile, const Deployment& deployment);

  // A pass of a mini-batch ended. `workload`: W of the fullest R-worker, over all
  // mini-batches. A pass during which prompts were prefilled tells nothing and is left out.
  void PassDone(int mini_batch, int64_t begin_ns, int64_t end_ns, int rows, int64_t workload, bool prefilled);

  // Means of what was compared since the last Reset; `passes` of it.
  int64_t passes() const { return passes_; }
  StepPrediction predicted() const;
  double measured_step_s() const;
  double measured_tokens_per_s() const;
  double measured_workload() const;
  void Reset();

 private:
  struct Last {
    int64_t end_ns = -1;
    int rows = 0;
  };
  const ModelProfile profile_;
  const Deployment deployment_;
  std::vector<Last> last_;  // by mini-batch
  int64_t passes_ = 0;
  StepPrediction predicted_;  // sums
  double step_s_ = 0, tokens_ = 0, workload_ = 0;
};

}  // namespace fastdecode::plan
