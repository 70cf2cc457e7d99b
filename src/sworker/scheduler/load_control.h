// The future workload of one (R-worker, mini-batch) pair, step by step.
//
// Counting. A step is one pass of the pair's mini-batch. Prefill fills the cache with the
// prompt but its last token; each step appends one and makes one. So a sequence with p
// prompt tokens and g output tokens takes g steps; the j-th of them, j = 1 .. g, reads
// p - 1 + j cached tokens. W of a step is the sum over the sequences that
// decode in it. Between two ends W only grows, so a limit holds at every step if it holds
// at every end: Algorithm 1 of FastDecode (arXiv 2403.11421), generalised to unequal
// prompts, targets and early ends. Its pseudocode adds a new micro-batch to itself and
// never looks at the new one's own end; this does neither. All answers are exact.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fastdecode {

// One sequence's share of W: `tokens_at_start` cached tokens read at step `start`, one more
// at each step up to `end`, the last.
struct LoadEntry {
  int64_t start = 0;
  int64_t end = 0;
  int64_t tokens_at_start = 0;
};

// Knows the entries that have joined; each call is O(distinct ends), Peak less. A plain value: copying
// one gives a scratch pad. One thread.
class LoadTracker {
 public:
  int64_t step() const { return step_; }  // the first step still to come

  // Steps before `step` are past: what ended there is forgotten. Never goes back.
  void Advance(int64_t step);

  // entry.start <= step() <= entry.end: it decodes in the next step.
  void Add(const LoadEntry& entry);
  // An added entry ends early: its load from step() on is given back. Harmless once its end
  // is past.
  void Remove(const LoadEntry& entry);

  // W at a step >= step(), if nothing else joins or leaves.
  int64_t At(int64_t step) const;
  // The largest W from step() on; 0 when nothing decodes.
  int64_t Peak() const;
  // The same if a sequence of `steps` >= 1 decode steps joined at step(). Where that is above
  // `enough`, the answer may be anything above it: whoever only asks for less is told sooner.
  int64_t PeakWith(int64_t tokens_at_start, int64_t steps, int64_t enough = std::numeric_limits<int64_t>::max()) const;
  // The least start >= max(from, step()) at which that sequence keeps every step's W within
  // `limit` while it decodes. Needs tokens_at_start + steps - 1 <= limit.
  int64_t EarliestStart(int64_t from, int64_t tokens_at_start, int64_t steps, int64_t limit) const;

 private:
  static constexpr int64_t kUnknown = -1;

  struct End {
    int64_t step = 0;  // last step of `count` sequences
    int64_t count = 0;
    int64_t offset = 0;    // sum of tokens_at_start - start: they read offset + count * t at step t
    int64_t workload = 0;  // W at `step`
  };

  std::vector<End> ends_;  // ascending by step, none before step_
  int64_t step_ = 0;
  mutable int64_t peak_ = 0;  // kUnknown: to be looked for when asked
};

}  // namespace fastdecode
