// A live run of the whole S-worker on a lab's parts, clients' API included: what a step really takes.
#pragma once

#include "common/base/status.h"
#include "plan/measure/lab.h"

namespace fastdecode::plan {

struct LiveRun {
  double step_s = 0;  // while every request decodes
  double tokens = 0;  // mean cached tokens of a sequence meanwhile
};

// One thread, which plays the client's.
class ServingProbe {
 public:
  // The lab is idle and stays so while the probe lives: its R-workers belong to the probe's engine.
  static Result<std::unique_ptr<ServingProbe>> Make(Lab& lab);
  ~ServingProbe();

  // `batch` requests of `prompt` and `output` tokens, submitted together.
  Result<LiveRun> Run(int batch, int prompt, int output);

 private:
  struct State;
  explicit ServingProbe(Lab& lab);
  Status Start();
  std::unique_ptr<State> state_;
};

}  // namespace fastdecode::plan
