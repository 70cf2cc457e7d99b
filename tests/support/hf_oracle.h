// Hugging Face's greedy runs (models/*/expected_many.json, models/smollm2_expected.json)
// and the rule by which ours must agree with them, stated in models/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace fastdecode::testing {

struct OracleCase {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> greedy_ids;  // 48, or up to and with the end-of-sequence id
  std::vector<double> margins;      // a step: best minus second-best logit
  std::vector<int32_t> second_ids;  // a step: what came second; empty if the file does not say
};

struct Oracle {
  std::string model;
  std::vector<OracleCase> cases;
};

Result<Oracle> LoadOracle(const std::string& path);

struct OracleLimits {
  double near_tie = 0.02;     // a first difference needs a margin below this
  size_t accepted_cases = 3;  // so many cases may have one
  double median_margin_error = 0.001;
  double largest_margin_error = 0.05;
};
// f32 weights; K and V in f16; Q, K, V, O may travel as f16.
OracleLimits F32Limits(const std::string& model);

// Rules 1 and 2: ids[i] is our run of case i.
struct IdsVerdict {
  std::vector<std::string> accepted;  // a line for each accepted difference
  std::vector<std::string> wrong;     // a line for each that is not; empty: the model agrees
};
IdsVerdict CompareIds(const Oracle& oracle, std::span<const std::vector<int32_t>> ids, const OracleLimits& limits);

// Rule 3, the sharper one: margins[i][step] is, with Hugging Face's tokens fed through our
// decode path, our log-probability of its best id minus that of its second. Wants
// second_ids.
struct MarginsVerdict {
  double median = 0, largest = 0;  // of |ours - Hugging Face's|, over all steps of all cases
  size_t steps = 0;
  bool agrees = false;
};
MarginsVerdict CompareMargins(const Oracle& oracle, std::span<const std::vector<double>> margins,
                              const OracleLimits& limits);

}  // namespace fastdecode::testing
