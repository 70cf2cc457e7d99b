// Greedy runs of Hugging Face's cases through a decode path of ours.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "sworker/model/sampler.h"
#include "tests/support/hf_oracle.h"

namespace fastdecode::testing {

inline std::vector<int32_t> GreedyIds(const at::Tensor& logits) {
  const SamplingParams greedy;
  const std::vector<SamplingRow> rows(static_cast<size_t>(logits.size(0)), SamplingRow{&greedy, 0});
  const at::Tensor ids = Sample(logits, rows).ids;
  return {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel()};
}

// Decoder: Prefill(prompts) and Decode(sequences, tokens) as PlainDecoder has them. All
// cases together, each until it has as many ids as Hugging Face's or ends. -> ids by case.
template <typename Decoder>
std::vector<std::vector<int32_t>> GreedyRun(Decoder& decoder, std::span<const OracleCase> cases,
                                            const std::vector<int64_t>& eos) {
  std::vector<std::vector<int32_t>> prompts, ids(cases.size());
  for (const OracleCase& one : cases) prompts.push_back(one.prompt_ids);
  std::vector<int32_t> next = GreedyIds(decoder.Prefill(prompts));
  std::vector<int64_t> active(prompts.size());
  std::iota(active.begin(), active.end(), 0);
  while (true) {
    std::vector<int64_t> still;
    std::vector<int32_t> tokens;
    for (size_t j = 0; j < active.size(); ++j) {
      const auto i = static_cast<size_t>(active[j]);
      ids[i].push_back(next[j]);
      const bool stopped = std::find(eos.begin(), eos.end(), next[j]) != eos.end();
      if (stopped || ids[i].size() == cases[i].greedy_ids.size()) continue;
      still.push_back(active[j]);
      tokens.push_back(next[j]);
    }
    if (still.empty()) return ids;
    active = still;
    next = GreedyIds(decoder.Decode(active, tokens));
  }
}

}  // namespace fastdecode::testing
