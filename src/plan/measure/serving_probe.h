// A live run of the serving core on a lab's parts: what a step really takes.
#pragma once

#include "common/base/status.h"
#include "plan/measure/lab.h"

namespace fastdecode::plan {

struct LiveRun {
  double step_s = 0;  // while every request decodes
  double tokens = 0;  // mean cached tokens of a sequence meanwhile
};

// `batch` requests of `prompt` and `output` tokens, submitted together. The lab is idle
// again when this returns; it is to be destroyed then, since its R-workers now belong to
// the run's engine.
class ServingProbe {
 public:
  explicit ServingProbe(Lab& lab);
  ~ServingProbe();
  Result<LiveRun> Run(int batch, int prompt, int output);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastdecode::plan
