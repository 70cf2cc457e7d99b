// fastdecode-bench --compare_plan: a report beside the planner's prediction.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "common/config/config.h"
#include "driver.h"
#include "plan/compare.h"
#include "workload.h"

namespace fastdecode {

class PlanComparison {
 public:
  // `stats` of the S-worker: its config and its R-workers' transports say which entry of the
  // profile is meant. kNotFound: it has none.
  static Result<PlanComparison> Make(const nlohmann::json& stats, const std::string& profile_path);

  // `report` as ToJson gave it.
  plan::Comparison Compare(const nlohmann::ordered_json& report, const Measured& measured, const Workload& workload,
                           bool decode_only) const;

 private:
  PlanComparison(Config config, plan::ModelProfile model) : config_(std::move(config)), model_(std::move(model)) {}

  Config config_;
  plan::ModelProfile model_;
};

nlohmann::ordered_json ToJson(const plan::Comparison& comparison);

}  // namespace fastdecode
