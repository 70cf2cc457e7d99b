#include "summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fastdecode {

Summary Summarize(std::vector<float> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto rank = [&](double share) {
    const auto index = static_cast<size_t>(std::max(1.0, std::ceil(share * count))) - 1;
    return static_cast<double>(values[index]);
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / count, rank(0.5), rank(0.9), rank(0.99), static_cast<double>(values.back())};
}

nlohmann::ordered_json ToJson(const Summary& summary) {
  return {
      {"mean", summary.mean}, {"p50", summary.p50}, {"p90", summary.p90}, {"p99", summary.p99}, {"max", summary.max}};
}

Summary SummaryFromJson(const nlohmann::json& json) {
  if (!json.is_object()) return {};
  return {json.value("mean", 0.0), json.value("p50", 0.0), json.value("p90", 0.0), json.value("p99", 0.0),
          json.value("max", 0.0)};
}

}  // namespace fastdecode
