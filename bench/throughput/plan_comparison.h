// fastdecode-bench --compare-plan: a report beside the planner's prediction.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "plan/compare.h"
#include "workload.h"

namespace fastdecode {

// `report` as ToJson gave it: its config names the model and the deployment.
// kNotFound: the profile has no entry for the model.
Result<plan::Comparison> CompareWithPlan(const nlohmann::ordered_json& report, const Workload& workload,
                                         bool decode_only, const std::string& profile_path);

nlohmann::ordered_json ToJson(const plan::Comparison& comparison);

}  // namespace fastdecode
