// What decodes next: the joins at a mini-batch's boundary, and its rows.
#pragma once

#include "sworker/scheduler/books.h"
#include "sworker/scheduler/pacing.h"

namespace fastdecode {

class Passes {
 public:
  Passes(Books& books, Pacer& pacer) : books_(books), pacer_(pacer) {}

  PassPlan Plan(int mini_batch);

 private:
  void JoinReady(RWorker& rworker, int mini_batch);

  Books& books_;
  Pacer& pacer_;
  int last_mini_batch_ = 0;  // that had rows
};

}  // namespace fastdecode
