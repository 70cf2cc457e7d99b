// Hugging Face's tokens fed through a decode path of ours: rule 3 of models/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/support/hf_oracle.h"

namespace fastdecode::testing {

// logits [active, vocab] f32 of the cases `active` -> one margin more for each of them.
inline void AppendMargins(const at::Tensor& logits, const Oracle& oracle, const std::vector<int64_t>& active,
                          std::vector<std::vector<double>>& margins) {
  for (size_t j = 0; j < active.size(); ++j) {
    const auto i = static_cast<size_t>(active[j]);
    const size_t step = margins[i].size();
    const float* row = logits.const_data_ptr<float>() + static_cast<int64_t>(j) * logits.size(1);
    margins[i].push_back(static_cast<double>(row[oracle.cases[i].greedy_ids[step]]) -
                         static_cast<double>(row[oracle.cases[i].second_ids[step]]));
  }
}

// Decoder: Prefill(prompts) and Decode(sequences, tokens) as PlainDecoder has them. All
// cases together. -> margins[case][step]: Hugging Face's best logit minus its second, by us.
template <typename Decoder>
std::vector<std::vector<double>> TeacherForced(Decoder& decoder, const Oracle& oracle) {
  std::vector<std::vector<int32_t>> prompts;
  for (const OracleCase& one : oracle.cases) prompts.push_back(one.prompt_ids);
  std::vector<std::vector<double>> margins(prompts.size());
  std::vector<int64_t> active(prompts.size());
  std::iota(active.begin(), active.end(), 0);
  at::Tensor logits = decoder.Prefill(prompts);
  while (true) {
    AppendMargins(logits, oracle, active, margins);
    std::vector<int32_t> tokens;
    std::erase_if(active, [&](int64_t i) {
      return margins[static_cast<size_t>(i)].size() == oracle.cases[static_cast<size_t>(i)].greedy_ids.size();
    });
    if (active.empty()) return margins;
    for (const int64_t i : active) {
      tokens.push_back(oracle.cases[static_cast<size_t>(i)].greedy_ids[margins[static_cast<size_t>(i)].size() - 1]);
    }
    logits = decoder.Decode(active, tokens);
  }
}

}  // namespace fastdecode::testing
