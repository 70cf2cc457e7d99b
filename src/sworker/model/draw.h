// One draw from one row of logits, by temperature, then top-k, then top-p, in the order
// and with the meaning of Hugging Face's logits warpers. Candidates are ranked by logit,
// the lower id first among equals.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "sworker/request.h"

namespace fastdecode {

// On the CPU. logits: a row; uniform in [0, 1). A NaN counts as impossible.
int64_t DrawFromRow(std::span<const float> logits, const SamplingParams& params, float uniform);

struct DrawInput {
  const SamplingParams* params = nullptr;
  float uniform = 0;
};
// On any device, by libtorch's operators. logits [rows, vocab], f32 -> [rows], i64.
at::Tensor DrawFromRows(const at::Tensor& logits, std::span<const DrawInput> rows);

}  // namespace fastdecode
