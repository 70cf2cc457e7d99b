// W: the cached tokens of the sequences being decoded, summed over the mini-batches.
//
// A sequence counts from its step's begin with position + 1 tokens (its new one is read,
// too), until its mini-batch's next step or until it is freed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/messages.h"

namespace fastdecode::rworker {

class WorkloadMeter {
 public:
  WorkloadMeter(int mini_batches, int max_rows);

  // mini_batch and the number of rows were checked before. No allocation.
  void BeginStep(int mini_batch, std::span<const StepRow> rows);
  void Free(uint64_t sequence);

  uint64_t now() const { return now_; }
  uint64_t peak() const { return peak_; }

 private:
  std::vector<std::vector<StepRow>> rows_;  // by mini-batch: those of its latest step
  uint64_t now_ = 0;
  uint64_t peak_ = 0;
};

}  // namespace fastdecode::rworker
