// Where a sequence goes, and whether it may pass one that waits.
#pragma once

#include <cstdint>
#include <optional>

#include "sworker/scheduler/books.h"

namespace fastdecode {

struct Place {
  int rworker = 0;
  int mini_batch = 0;
};

// The pair whose peak W, in units of its R-worker's speed, stays lowest with `sequence` in it,
// among those that have KV blocks, a slot and room for its load now, counting every
// prefilling and ready sequence as joining at the next pass. `paced`: only pairs that have a
// start token.
std::optional<Place> FindPlace(Books& books, const Sequence& sequence, bool paced);

enum class JoinVerdict {
  kFits,
  kPairFull,     // the pair's share of the limit would be passed at some step
  kRWorkerFull,  // the R-worker's limit would be, with the other mini-batches' peaks
};
// Whether `sequence`, joining `mini_batch` at its next pass, keeps every later step within the
// limits. Exact: counts only what has joined. The sum over the mini-batches is bounded by
// their peaks, since nothing says how their passes align.
JoinVerdict CheckJoin(const Books& books, const RWorker& rworker, int mini_batch, const Sequence& sequence);

// The place kept for a head of the queue that nothing can take yet: where it could start
// earliest by what is known now.
class Reservation {
 public:
  // FindPlace has found nothing for `head`. `rworker`: the one kept for it before, which it
  // stays with, or -1: any live one that it fits when empty.
  Reservation(Books& books, const Sequence& head, int rworker);
  // Whether `other`, which FindPlace put at `place`, leaves the head's start where it is.
  bool Allows(const Sequence& other, const Place& place) const;
  int rworker() const { return place_.rworker; }

 private:
  // Rounds until the head could start at `place` if `other` (may be null) joined another
  // mini-batch, or the same, of that R-worker before.
  int64_t Wait(const Place& place, const Sequence* other, int other_mini_batch) const;

  Books& books_;
  const Sequence& head_;
  Place place_;
  int64_t wait_ = 0;
};

}  // namespace fastdecode
