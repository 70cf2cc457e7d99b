// From logits to ids, on the device. A sequence's draws depend on (seed, position)
// alone (Philox), never on what else is in the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "sworker/request.h"

namespace fastdecode {

struct SamplingRow {
  const SamplingParams* params = nullptr;  // outlives the call
  uint64_t position = 0;                   // index of the token being drawn
};

struct Sampled {
  at::Tensor ids;  // [rows] i64, device
  at::Tensor
      logprobs;  // [rows] f32, device: log-softmax of the raw logits at the chosen id; 0 in rows that ask for none
};

// logits [rows, vocab] f32; rows.size() == rows. Greedy rows take the argmax (the lowest
// id of equals); others: temperature, then top-k, then top-p, then one uniform number.
Sampled Sample(const at::Tensor& logits, std::span<const SamplingRow> rows);

// Uniform in [0, 1), 24 bits: Philox4x32-10 with key = seed and counter = position.
float PhiloxUniform(uint64_t seed, uint64_t position);

}  // namespace fastdecode
