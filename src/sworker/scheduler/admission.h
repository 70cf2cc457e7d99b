// Who is prefilled next: first come, first served, as slots, KV blocks, load control and
// pacing allow; those behind a head that must wait pass it only if it loses nothing by it.
#pragma once

#include <vector>

#include "sworker/scheduler/books.h"
#include "sworker/scheduler/pacing.h"

namespace fastdecode {

class Admission {
 public:
  Admission(Books& books, Pacer& pacer) : books_(books), pacer_(pacer) {}

  // Gives places to the next prompts, up to prefill_tokens_per_step together.
  std::vector<PrefillItem> Plan();

 private:
  Books& books_;
  Pacer& pacer_;
  SequenceId held_head_ = 0;  // the head for which room was held last, ...
  int held_rworker_ = 0;      // ... where, ...
  int passed_by_ = 0;         // ... and how many have passed it there
};

}  // namespace fastdecode
