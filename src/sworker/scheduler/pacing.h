// How fast sequences may start: spreads their ages, so that W stays near its mean.
//
// A limit on W alone would let the first arrivals take all of it at once: half a batch of
// one age, nobody else until they end, and so on in waves. The paper starts M = B*F/S
// sequences every F steps; here lengths differ, so joins get a rate, lambda, at which the
// scarcest of three things (slots, W, KV blocks) would just be full all the time.
#pragma once

#include <cstdint>

#include "sworker/scheduler/books.h"

namespace fastdecode {

struct Pace {
  double rate = 0;   // sequences a round (one pass of every mini-batch)
  double burst = 0;  // in flight, up to which starting at once keeps the later peak within the target
};

// From what waits and what is in flight, and the live R-workers.
Pace ComputePace(const Books& books);

// Tokens for starts: `rate` a round, and one for each sequence that ends, since its slot is
// free again.
class Pacer {
 public:
  // interval_rounds: grant that many rounds' tokens together; 0: every round.
  explicit Pacer(int interval_rounds);

  void OnRound(double rate);
  void OnEnd() { tokens_ += 1; }
  bool Ready() const { return tokens_ >= 1; }
  void Take() { tokens_ -= 1; }
  // What is left over after planning does not pile up beyond one micro-batch.
  void Trim(double rate);

 private:
  int interval_rounds_;
  int rounds_ = 0;  // since the last grant
  double tokens_ = 1;
};

}  // namespace fastdecode
