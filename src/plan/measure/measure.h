// fastdecode-plan measure: the micro-benchmarks of a deployment, made into a profile.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "common/base/status.h"
#include "plan/profile.h"

namespace fastdecode::plan {

struct MeasureOptions {
  double seconds = 150;  // of a model, about: what comes later is measured with fewer repetitions
  std::function<void(const std::string&)> progress;  // a line for the user; may be empty
};

// `config` names R-workers that are up, and whose S-worker is not. Blocks until done.
Result<ModelProfile> MeasureModel(const Config& config, const MeasureOptions& options, const std::atomic<int>& stop);

std::string LibtorchVersion();  // that this program was built with

}  // namespace fastdecode::plan
