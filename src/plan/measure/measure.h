// fastdecode-plan measure: the micro-benchmarks of a deployment, made into a profile.
#pragma once

#include <sched.h>

#include <atomic>
#include <functional>
#include <string>

#include "common/base/status.h"
#include "plan/profile.h"

namespace fastdecode::plan {

struct MeasureOptions {
  double seconds = 150;  // of a model, about: what comes later is measured with fewer repetitions
  std::function<void(const std::string&)> progress;  // a line for the user; may be empty
  // That the client of the live runs may use, as one does in another process; null: the caller's, which the
  // S-worker's threads inherit.
  const cpu_set_t* client_cpus = nullptr;
};

// `config` names R-workers that are up, and whose S-worker is not. Blocks until done.
Result<ModelProfile> MeasureModel(const Config& config, const MeasureOptions& options, const std::atomic<int>& stop);

std::string LibtorchVersion();  // that this program was built with

}  // namespace fastdecode::plan
