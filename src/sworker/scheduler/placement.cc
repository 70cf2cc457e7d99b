#include "sworker/scheduler/placement.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace fastdecode {
namespace {

// A mini-batch's share of its R-worker's limit. One sequence may be longer than the share:
// it is let in when the R-worker as a whole has room.
int64_t PairLimit(const Books& books, const RWorker& rworker, const Sequence& sequence) {
  return std::max(rworker.limit / books.options.mini_batches, sequence.final_tokens());
}

// `peak`: of this mini-batch with the sequence; `others`: summed peaks of the other ones.
JoinVerdict Judge(const Books& books, const RWorker& rworker, const Sequence& sequence, int64_t peak, int64_t others) {
  if (!books.options.load_control) return JoinVerdict::kFits;
  if (peak > PairLimit(books, rworker, sequence)) return JoinVerdict::kPairFull;
  return peak + others > rworker.limit ? JoinVerdict::kRWorkerFull : JoinVerdict::kFits;
}

// Rounds until `rworker` has the KV blocks for `head`, if every sequence there makes all its
// tokens, starting now if it has not yet, and `other` (may be null) comes before.
int64_t RoundsUntilFree(const Books& books, const RWorker& rworker, const Sequence& head, const Sequence* other) {
  int64_t missing = books.Blocks(head) + rworker.reserved_blocks - rworker.total_blocks;
  if (other != nullptr) missing += books.Blocks(*other);
  if (missing <= 0) return 0;
  std::vector<std::pair<int64_t, int64_t>> ends;  // rounds from now, blocks
  int64_t held = 0;
  for (const Pair& pair : rworker.pairs) {
    for (const Sequence* s : pair.pending) ends.emplace_back(s->decode_steps, books.Blocks(*s));
    for (const Sequence* s : pair.active) {
      ends.emplace_back(s->load.end + 1 - pair.tracker.step(), books.Blocks(*s));
    }
  }
  for (const auto& [rounds, blocks] : ends) held += blocks;
  ends.emplace_back(0, rworker.reserved_blocks - held);  // of those that have ended
  if (other != nullptr) ends.emplace_back(other->decode_steps, books.Blocks(*other));
  std::sort(ends.begin(), ends.end());
  auto next = ends.begin();
  while (missing > next->second) missing -= next++->second;
  return next->first;
}

int64_t PeakWith(const LoadTracker& tracker, const Sequence& sequence,
                 int64_t enough = std::numeric_limits<int64_t>::max()) {
  return tracker.PeakWith(sequence.prefill_tokens + 1, sequence.decode_steps, enough);
}

// Cached tokens that what is in flight on an R-worker reads now.
int64_t LoadNow(const RWorker& rworker) {
  int64_t load = 0;
  for (const Pair& pair : rworker.pairs) {
    load += pair.tracker.At(pair.tracker.step());
    for (const Sequence* s : pair.pending) load += s->prefill_tokens + 1;
  }
  return load;
}

// What FindPlace minimises: for the rule in force first the pair's peak; among equals the R-worker's,
// so that few sequences spread over all; then the pair's size.
using Key = std::tuple<double, double, size_t>;

Key KeyOf(const Books& books, int index, int64_t peak, int64_t others, size_t size) {
  const RWorker& rworker = books.rworkers[static_cast<size_t>(index)];
  const Key lowest{static_cast<double>(peak) / rworker.speed, static_cast<double>(peak + others) / rworker.speed, size};
  switch (books.options.placement) {
    case PlacementRule::kLowestPeak:
      break;
    case PlacementRule::kLeastLoaded:
      return {static_cast<double>(LoadNow(rworker)) / rworker.speed, std::get<0>(lowest), size};
    case PlacementRule::kRoundRobin: {
      const int rworkers = books.options.num_rworkers;
      return {(index + rworkers - books.last_placed - 1) % rworkers, static_cast<double>(size), 0};
    }
  }
  return lowest;
}

}  // namespace

std::optional<Place> FindPlace(Books& books, const Sequence& sequence, bool paced) {
  std::optional<Place> best;
  Key best_key{std::numeric_limits<double>::infinity(), 0, 0};
  if (books.in_flight >= books.options.max_batch) return best;
  const int64_t blocks = books.Blocks(sequence);
  for (int r = 0; r < static_cast<int>(books.rworkers.size()); ++r) {
    RWorker& rworker = books.rworkers[static_cast<size_t>(r)];
    if (!rworker.live || rworker.reserved_blocks + blocks > rworker.total_blocks) continue;
    if (rworker.held >= MaxHeld(books.options.max_batch)) continue;
    int64_t peaks = 0;
    for (Pair& pair : rworker.pairs) peaks += std::max(pair.planned_workload, pair.Projection().Peak());
    // A peak above this is refused, or higher than the best one: no need to know how high.
    int64_t enough = std::numeric_limits<int64_t>::max();
    if (books.options.load_control) enough = PairLimit(books, rworker, sequence);
    if (best && books.options.placement == PlacementRule::kLowestPeak) {
      enough = std::min(enough, static_cast<int64_t>(std::get<0>(best_key) * rworker.speed) + 1);
    }
    for (int m = 0; m < books.options.mini_batches; ++m) {
      if (books.mini_batch_sizes[static_cast<size_t>(m)] >= books.mini_batch_capacity()) continue;
      Pair& pair = rworker.pairs[static_cast<size_t>(m)];
      if (paced && pair.start_tokens < 1) continue;
      const int64_t peak_without = pair.Projection().Peak();
      if (peak_without > enough) continue;
      const int64_t peak = PeakWith(pair.Projection(), sequence, enough);
      if (peak > enough) continue;
      const int64_t others = peaks - std::max(pair.planned_workload, peak_without);
      if (Judge(books, rworker, sequence, peak, others) != JoinVerdict::kFits) continue;
      const Key key = KeyOf(books, r, peak, others, pair.active.size() + pair.pending.size());
      if (key < best_key) {
        best = Place{r, m};
        best_key = key;
      }
    }
  }
  return best;
}

JoinVerdict CheckJoin(const Books& books, const RWorker& rworker, int mini_batch, const Sequence& sequence) {
  int64_t others = 0;
  for (int m = 0; m < books.options.mini_batches; ++m) {
    if (m != mini_batch) others += rworker.pairs[static_cast<size_t>(m)].CommittedPeak();
  }
  const LoadTracker& tracker = rworker.pairs[static_cast<size_t>(mini_batch)].tracker;
  const int64_t peak = PeakWith(tracker, sequence, PairLimit(books, rworker, sequence));
  return Judge(books, rworker, sequence, peak, others);
}

Reservation::Reservation(Books& books, const Sequence& head, int rworker) : books_(books), head_(head) {
  wait_ = std::numeric_limits<int64_t>::max();
  for (int r = 0; r < static_cast<int>(books.rworkers.size()); ++r) {
    const RWorker& candidate = books.rworkers[static_cast<size_t>(r)];
    if ((rworker >= 0 && r != rworker) || !candidate.live || !books.FitsEmpty(candidate, head)) continue;
    for (int m = 0; m < books.options.mini_batches; ++m) {
      const int64_t wait = Wait({r, m}, nullptr, 0);
      if (wait < wait_) {
        wait_ = wait;
        place_ = {r, m};
      }
    }
  }
}

int64_t Reservation::Wait(const Place& place, const Sequence* other, int other_mini_batch) const {
  RWorker& rworker = books_.rworkers[static_cast<size_t>(place.rworker)];
  const int64_t wait = RoundsUntilFree(books_, rworker, head_, other);
  if (!books_.options.load_control) return wait;
  const LoadTracker& projection = rworker.pairs[static_cast<size_t>(place.mini_batch)].Projection();
  const int64_t step = projection.step();
  const auto earliest = [&](const LoadTracker& tracker) {
    return tracker.EarliestStart(step + wait, head_.prefill_tokens + 1, head_.decode_steps,
                                 PairLimit(books_, rworker, head_)) -
           step;
  };
  if (other == nullptr || other_mini_batch != place.mini_batch) return earliest(projection);
  LoadTracker with_other = projection;
  with_other.Add(other->LoadFrom(step));
  return earliest(with_other);
}

bool Reservation::Allows(const Sequence& other, const Place& place) const {
  // A slot stays free for the head.
  if (books_.in_flight + 1 >= books_.options.max_batch) return false;
  if (place.mini_batch == place_.mini_batch &&
      books_.mini_batch_sizes[static_cast<size_t>(place.mini_batch)] + 1 >= books_.mini_batch_capacity()) {
    return false;
  }
  if (place.rworker != place_.rworker) return true;
  // A head longer than a mini-batch's share waits for all of them, which Wait does not look at.
  const RWorker& rworker = books_.rworkers[static_cast<size_t>(place.rworker)];
  if (books_.options.load_control && head_.final_tokens() > rworker.limit / books_.options.mini_batches) return false;
  return Wait(place_, &other, place.mini_batch) <= wait_;
}

}  // namespace fastdecode
