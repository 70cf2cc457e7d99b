// fastdecode-plan measure: brings up each config's R-workers, measures, writes a profile.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace fastdecode::plan {

struct MeasureCommand {
  std::vector<std::string> configs;  // deployments; each becomes one of the profile's models
  std::string out;                   // entries of other models that it has stay
  bool rworkers_are_up = false;      // the configs name R-workers that somebody else has started
  double seconds = 150;              // of a model, about
};

// Progress goes to standard error. kUnimplemented: a build without the S-worker.
Status RunMeasure(const MeasureCommand& command, const std::atomic<int>& stop);

}  // namespace fastdecode::plan
