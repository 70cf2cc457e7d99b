#include "tests/support/hf_oracle.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace fastdecode::testing {
namespace {

// Where two runs part, and whether the rule accepts it.
struct Difference {
  bool accepted = false;
  std::string text;
};

std::optional<Difference> FirstDifference(const OracleCase& right, std::span<const int32_t> ids,
                                          const OracleLimits& limits) {
  const size_t steps = right.greedy_ids.size();
  for (size_t step = 0; step < steps; ++step) {
    const bool near_tie = right.margins[step] < limits.near_tie;
    if (right.second_ids.empty() && near_tie) return std::nullopt;  // nothing to hold ours against from here on
    if (step >= ids.size()) return Difference{false, "ends after " + std::to_string(ids.size()) + " ids"};
    if (ids[step] == right.greedy_ids[step]) continue;
    const bool accepted = near_tie && ids[step] == right.second_ids[step];
    return Difference{accepted, "step " + std::to_string(step) + ": " + std::to_string(ids[step]) + " instead of " +
                                    std::to_string(right.greedy_ids[step]) + ", margin " +
                                    std::to_string(right.margins[step])};
  }
  if (ids.size() > steps) return Difference{false, "goes on after " + std::to_string(steps) + " ids"};
  return std::nullopt;
}

}  // namespace

Result<Oracle> LoadOracle(const std::string& path) {
  std::ifstream in(path);
  if (!in) return NotFound(path + ": cannot be read");
  const nlohmann::json file = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("cases")) return DataLoss(path + ": no JSON object with \"cases\"");
  Oracle oracle;
  oracle.model = file.value("model", "");
  for (const nlohmann::json& item : file["cases"]) {
    OracleCase one;
    one.prompt_ids = item.at(item.contains("prompt_ids") ? "prompt_ids" : "input_ids").get<std::vector<int32_t>>();
    one.greedy_ids = item.at("greedy_ids").get<std::vector<int32_t>>();
    one.margins = item.at("margins").get<std::vector<double>>();
    if (item.contains("second_ids")) one.second_ids = item.at("second_ids").get<std::vector<int32_t>>();
    const size_t steps = one.greedy_ids.size();
    if (one.prompt_ids.empty() || steps == 0 || one.margins.size() != steps ||
        (!one.second_ids.empty() && one.second_ids.size() != steps)) {
      return DataLoss(path + ": a case's lists differ in length");
    }
    oracle.cases.push_back(std::move(one));
  }
  if (oracle.cases.empty()) return DataLoss(path + ": no cases");
  return oracle;
}

OracleLimits F32Limits(const std::string& model) {
  OracleLimits limits;
  // Its K and V are large. A forward pass in double precision that rounds nothing but K and
  // V to f16 gives a median of 0.0017 there, and 0.0006 on TinyStories-656K.
  if (model.starts_with("stories260K")) limits = {.median_margin_error = 0.0025, .largest_margin_error = 0.15};
  return limits;
}

IdsVerdict CompareIds(const Oracle& oracle, std::span<const std::vector<int32_t>> ids, const OracleLimits& limits) {
  IdsVerdict verdict;
  if (ids.size() != oracle.cases.size()) {
    verdict.wrong.push_back(std::to_string(ids.size()) + " runs of " + std::to_string(oracle.cases.size()) + " cases");
    return verdict;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::optional<Difference> difference = FirstDifference(oracle.cases[i], ids[i], limits);
    if (!difference) continue;
    auto& list = difference->accepted ? verdict.accepted : verdict.wrong;
    list.push_back(oracle.model + " case " + std::to_string(i) + ": " + difference->text);
  }
  if (verdict.accepted.size() > limits.accepted_cases) {
    verdict.wrong.push_back(oracle.model + ": " + std::to_string(verdict.accepted.size()) +
                            " accepted differences, at most " + std::to_string(limits.accepted_cases) + " allowed");
  }
  return verdict;
}

MarginsVerdict CompareMargins(const Oracle& oracle, std::span<const std::vector<double>> margins,
                              const OracleLimits& limits) {
  std::vector<double> errors;
  bool complete = margins.size() == oracle.cases.size();
  for (size_t i = 0; complete && i < margins.size(); ++i) {
    const OracleCase& right = oracle.cases[i];
    complete = margins[i].size() == right.margins.size();
    for (size_t step = 0; complete && step < right.margins.size(); ++step) {
      errors.push_back(std::abs(margins[i][step] - right.margins[step]));
    }
  }
  MarginsVerdict verdict;
  if (!complete || errors.empty()) return verdict;
  std::sort(errors.begin(), errors.end());
  verdict.median = errors[errors.size() / 2];
  verdict.largest = errors.back();
  verdict.steps = errors.size();
  verdict.agrees = std::isfinite(verdict.largest) && verdict.median <= limits.median_margin_error &&
                   verdict.largest <= limits.largest_margin_error;
  return verdict;
}

}  // namespace fastdecode::testing
