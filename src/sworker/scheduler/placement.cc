#include "sworker/scheduler/placement.h"

#include <algorithm>
#include <limits>
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
  if (!books.options.load_control || sequence.decode_steps == 0) return JoinVerdict::kFits;
  if (peak > PairLimit(books, rworker, sequence)) return JoinVerdict::kPairFull;
  return peak + others > rworker.limit ? JoinVerdict::kRWorkerFull : JoinVerdict::kFits;
}

int64_t PeakWith(const LoadTracker& tracker, const Sequence& sequence) {
  if (sequence.decode_steps == 0) return tracker.Peak();
  return tracker.PeakWith(sequence.prompt + 1, sequence.decode_steps);
}

}  // namespace

std::optional<Place> FindPlace(Books& books, const Sequence& sequence) {
  std::optional<Place> best;
  double best_peak = std::numeric_limits<double>::infinity();
  size_t best_size = 0;
  if (books.in_flight >= books.options.max_batch) return best;
  const int64_t blocks = books.Blocks(sequence.tokens);
  for (int r = 0; r < static_cast<int>(books.rworkers.size()); ++r) {
    RWorker& rworker = books.rworkers[static_cast<size_t>(r)];
    if (!rworker.live || rworker.reserved_blocks + blocks > rworker.total_blocks) continue;
    int64_t peaks = 0;
    for (Pair& pair : rworker.pairs) peaks += std::max(pair.planned_workload, pair.Projection().Peak());
    for (int m = 0; m < books.options.mini_batches; ++m) {
      if (books.mini_batch_sizes[static_cast<size_t>(m)] >= books.mini_batch_capacity()) continue;
      Pair& pair = rworker.pairs[static_cast<size_t>(m)];
      const int64_t peak = PeakWith(pair.Projection(), sequence);
      const int64_t others = peaks - std::max(pair.planned_workload, pair.Projection().Peak());
      if (Judge(books, rworker, sequence, peak, others) != JoinVerdict::kFits) continue;
      const double scaled = static_cast<double>(peak) / rworker.speed;
      const size_t size = pair.active.size() + pair.pending.size();
      if (scaled < best_peak || (scaled == best_peak && size < best_size)) {
        best = Place{r, m};
        best_peak = scaled;
        best_size = size;
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
  return Judge(books, rworker, sequence, PeakWith(tracker, sequence), others);
}

Reservation::Reservation(Books& books, const Sequence& head) : books_(books), head_(head) {
  wait_ = std::numeric_limits<int64_t>::max();
  for (int r = 0; r < static_cast<int>(books.rworkers.size()); ++r) {
    RWorker& rworker = books.rworkers[static_cast<size_t>(r)];
    if (!rworker.live || !books.FitsEmpty(rworker, head)) continue;
    for (int m = 0; m < books.options.mini_batches; ++m) {
      const Place place{r, m};
      const int64_t wait = Wait(place, {.projection = &rworker.pairs[static_cast<size_t>(m)].Projection()});
      if (wait < wait_) {
        wait_ = wait;
        place_ = place;
      }
    }
  }
}

int64_t Reservation::Wait(const Place& place, const Joining& extra) const {
  RWorker& rworker = books_.rworkers[static_cast<size_t>(place.rworker)];
  int64_t missing = books_.Blocks(head_.tokens) + rworker.reserved_blocks + extra.blocks - rworker.total_blocks;
  int64_t wait = 0;
  if (missing > 0) {
    std::vector<std::pair<int64_t, int64_t>> frees;  // rounds from now, blocks
    frees.emplace_back(extra.steps, extra.blocks);
    for (const auto& [id, sequence] : books_.sequences) {
      if (sequence.rworker != place.rworker) continue;
      int64_t left = 0;
      if (sequence.phase == Phase::kPrefilling || sequence.phase == Phase::kReady) {
        left = sequence.decode_steps;
      } else if (sequence.phase == Phase::kDecoding) {
        left = sequence.load.end + 1 - rworker.pairs[static_cast<size_t>(sequence.mini_batch)].tracker.step();
      }
      frees.emplace_back(left, books_.Blocks(sequence.tokens));
    }
    std::sort(frees.begin(), frees.end());
    for (const auto& [rounds, blocks] : frees) {
      if (missing <= 0) break;
      missing -= blocks;
      wait = rounds;
    }
  }
  if (!books_.options.load_control || head_.decode_steps == 0) return wait;
  const LoadTracker& projection = *extra.projection;
  return projection.EarliestStart(projection.step() + wait, head_.prompt + 1, head_.decode_steps,
                                  PairLimit(books_, rworker, head_)) -
         projection.step();
}

bool Reservation::Allows(const Sequence& other, const Place& place) const {
  // A slot stays free for the head.
  if (books_.in_flight + 1 >= books_.options.max_batch) return false;
  const bool same_mini_batch = place.mini_batch == place_.mini_batch;
  if (same_mini_batch &&
      books_.mini_batch_sizes[static_cast<size_t>(place.mini_batch)] + 1 >= books_.mini_batch_capacity()) {
    return false;
  }
  if (place.rworker != place_.rworker) return true;
  RWorker& rworker = books_.rworkers[static_cast<size_t>(place.rworker)];
  // Such a head waits for the sum over the mini-batches, which Wait does not look at.
  if (books_.options.load_control && head_.final_tokens() > rworker.limit / books_.options.mini_batches) return false;
  LoadTracker projection = rworker.pairs[static_cast<size_t>(place_.mini_batch)].Projection();
  if (same_mini_batch && other.decode_steps > 0) {
    const int64_t step = projection.step();
    projection.Add({.start = step, .end = step + other.decode_steps - 1, .tokens_at_start = other.prompt + 1});
  }
  const Joining joining{.blocks = books_.Blocks(other.tokens), .steps = other.decode_steps, .projection = &projection};
  return Wait(place_, joining) <= wait_;
}

}  // namespace fastdecode
