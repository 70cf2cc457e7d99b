// How fast sequences of nearly equal length may start: spreads their ages, so that W stays
// near its mean.
//
// A limit on W alone would let the first arrivals take all of it at once: half a batch of
// one age, nobody else until they end, and so on in waves. The paper starts M = B*F/S
// sequences every F steps; here each (R-worker, mini-batch) pair earns start tokens at the
// rate at which the scarcest of three things (slots, W, KV blocks) would just be full all
// the time. By pair, since it is the spacing within a pair that flattens its W. Lengths that
// differ spread the ages by themselves, and pacing them only costs: docs/scheduler.md has
// the figures behind each choice here.
#pragma once

#include "sworker/scheduler/books.h"

namespace fastdecode {

class Pacer {
 public:
  explicit Pacer(const SchedulerOptions& options);

  // Whether a start takes a token now: what waits and is in flight is nearly of one length,
  // and so much is in flight that starting one more at once would show in the later peak.
  bool Paces(const Books& books) const;
  // A round is over: every pair earns its rate, in one grant each interval_steps rounds.
  void OnRound(Books& books);
  // A sequence in flight ends: what it leaves unused of the W that its token stood for.
  static void Refund(Books& books, const Sequence& s);
  // What planning left over does not pile up beyond one micro-batch.
  void Trim(Books& books) const;

 private:
  // Sequences a round, for each of its pairs; `speeds`: of all R-workers that are there.
  double Rate(const Books& books, const RWorker& rworker, double speeds) const;

  int interval_rounds_;
  int rounds_ = 0;  // since the last grant
};

}  // namespace fastdecode
