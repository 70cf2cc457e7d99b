// A live run of the whole S-worker on a lab's parts, clients' API included: what a step really takes.
#pragma once

#include <sched.h>

#include <memory>

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
  // client_cpus: that the client may use, which else is where the S-worker's threads are; null: the caller's.
  static Result<std::unique_ptr<ServingProbe>> Make(Lab& lab, const cpu_set_t* client_cpus);
  ~ServingProbe();

  // `batch` requests of `prompt` and `output` tokens, submitted together.
  Result<LiveRun> Run(int batch, int prompt, int output);

 private:
  struct State;
  class ClientCpus;
  ServingProbe(Lab& lab, const cpu_set_t* client_cpus);
  Status Start();
  std::unique_ptr<State> state_;
};

}  // namespace fastdecode::plan
