// What decodes next: the joins at a mini-batch's boundary, and its rows.
#pragma once

#include <cstdint>
#include <vector>

#include "sworker/scheduler/books.h"
#include "sworker/scheduler/pacing.h"

namespace fastdecode {

class Passes {
 public:
  Passes(Books& books, Pacer& pacer);

  PassPlan Plan(int mini_batch);

 private:
  void JoinReady(RWorker& rworker, int mini_batch);

  Books& books_;
  Pacer& pacer_;
  std::vector<uint64_t> planned_at_;  // a mini-batch: `plans_` at its last turn
  uint64_t plans_ = 0;
  int last_mini_batch_ = 0;  // that had rows
};

}  // namespace fastdecode
