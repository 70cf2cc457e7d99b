// Planned against actual while the S-worker serves: each pass beside the model's step, a
// metric for Stats and one log line a minute.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "common/config/config.h"
#include "plan/step_watch.h"
#include "sworker/engine/timeline.h"

namespace fastdecode {

// Thread rule: any thread; it outlives the engine.
class PlanWatch {
 public:
  // null where the config names no profile. An error where the profile is broken or of
  // another model.
  static Result<std::unique_ptr<PlanWatch>> Make(const Config& config);

  // Once R-workers have joined: an error where the profile was measured over other transports
  // than carry their rows.
  Status CheckTransports(const std::set<std::string>& kinds) const;

  void PassDone(const FinishedPass& pass, const Timeline& timeline);
  // {"passes": .., "step_ms": {"predicted", "measured", "ratio"}, ..., "differs": ".."}
  nlohmann::json Stats(const TimelineWindow& window) const;
  void Reset();

 private:
  PlanWatch(const Config& config, plan::ModelProfile profile);
  plan::Comparison CompareLocked(const TimelineWindow& window) const;

  const std::string path_;       // of the profile
  const std::string transport_;  // that it was measured over
  mutable std::mutex mutex_;
  plan::StepWatch watch_;  // guarded by mutex_
  int64_t next_line_ns_ = 0;
};

// load_control.workload_limit of the profile that the config names: where it is "auto" and
// load control is on, the W at which the R-workers' time equals the device's.
Status ApplyPlan(Config* config);

}  // namespace fastdecode
