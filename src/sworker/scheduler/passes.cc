#include "sworker/scheduler/passes.h"

#include "common/base/logging.h"
#include "sworker/scheduler/placement.h"

namespace fastdecode {

// First prefilled, first joined, with one exception: a sequence that its own mini-batch could
// not take goes to whichever mini-batch of its R-worker can. Whoever is held back holds back
// all younger ones that want the same room, so it gets in when the older ones have ended.
void Passes::JoinReady(RWorker& rworker, int mini_batch) {
  size_t kept = 0;
  bool closed = false;
  for (Sequence* s : rworker.ready) {
    const bool own = s->mini_batch == mini_batch;
    const bool room = own || books_.mini_batch_sizes[static_cast<size_t>(mini_batch)] < books_.mini_batch_capacity();
    JoinVerdict verdict = JoinVerdict::kPairFull;
    if (!closed && room && (own || s->waited)) verdict = CheckJoin(books_, rworker, mini_batch, *s);
    if (verdict == JoinVerdict::kFits) {
      books_.Join(*s, mini_batch);
      continue;
    }
    rworker.ready[kept++] = s;
    if (own && !closed) {
      s->waited = true;
      s->sum_blocked = verdict == JoinVerdict::kRWorkerFull;
      closed = true;
    }
    closed = closed || s->sum_blocked;
  }
  rworker.ready.resize(kept);
}

PassPlan Passes::Plan(int mini_batch) {
  CHECK_GE(mini_batch, 0);
  CHECK_LT(mini_batch, books_.options.mini_batches);
  PassPlan plan;
  for (int r = 0; r < books_.options.num_rworkers; ++r) {
    RWorker& rworker = books_.rworker(r);
    Pair& pair = rworker.pairs[static_cast<size_t>(mini_batch)];
    JoinReady(rworker, mini_batch);
    const int64_t step = pair.tracker.step();
    pair.planned_workload = pair.live_workload = pair.tracker.At(step);
    size_t kept = 0;
    for (Sequence* s : pair.active) {
      plan.rows.push_back({s->id, r});
      if (s->load.end == step) {
        s->phase = Phase::kSpent;
      } else {
        pair.active[kept++] = s;
      }
    }
    pair.active.resize(kept);
    pair.tracker.Advance(step + 1);
    pair.Touch();
  }
  if (!plan.rows.empty()) {
    if (mini_batch <= last_mini_batch_) pacer_.OnRound(books_);
    last_mini_batch_ = mini_batch;
  }
  return plan;
}

}  // namespace fastdecode
