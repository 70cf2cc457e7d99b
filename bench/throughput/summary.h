// Distributions, as the reports print them.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace fastdecode {

struct Summary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// Nearest-rank percentiles; zeros if there is none.
Summary Summarize(std::vector<float> values);

nlohmann::ordered_json ToJson(const Summary& summary);
// From {"mean": .., "p50": .., ...}; what is missing stays 0.
Summary SummaryFromJson(const nlohmann::json& json);

}  // namespace fastdecode
