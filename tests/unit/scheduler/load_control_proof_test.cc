// The proof of load control: LoadTracker against brute force, which adds up every sequence at
// every step. For each case: the start that it names keeps the limit at every step, and every
// earlier start would pass it. All small cases, then 10^5 random ones with unequal prompts and
// targets, early ends and cancellations. The scheduler as a whole: join_proof_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "sworker/scheduler/load_control.h"

namespace fastdecode {
namespace {

struct Life {
  int64_t start = 0;
  int64_t prompt = 0;
  int64_t steps = 0;     // as declared: what load control must count on
  int64_t gone_at = -1;  // it reads nothing from this step on; -1: makes all its steps

  int64_t end() const { return start + steps - 1; }
  LoadEntry entry() const { return {.start = start, .end = end(), .tokens_at_start = prompt + 1}; }
};

// The definition: the j-th decode step reads prompt + j cached tokens.
int64_t Reads(const Life& life, int64_t step) {
  if (step < life.start || step > life.end() || (life.gone_at >= 0 && step >= life.gone_at)) return 0;
  return life.prompt + (step - life.start + 1);
}

int64_t Workload(const std::vector<Life>& lives, int64_t step) {
  int64_t sum = 0;
  for (const Life& life : lives) sum += Reads(life, step);
  return sum;
}

bool KeepsLimit(const std::vector<Life>& lives, const Life& newcomer, int64_t limit) {
  for (int64_t step = newcomer.start; step <= newcomer.end(); ++step) {
    if (Workload(lives, step) + Reads(newcomer, step) > limit) return false;
  }
  return true;
}

// Step by step from `from`: the first start that keeps the limit.
int64_t EarliestByTrying(const std::vector<Life>& lives, Life newcomer, int64_t from, int64_t limit) {
  for (newcomer.start = from; !KeepsLimit(lives, newcomer, limit);) ++newcomer.start;
  return newcomer.start;
}

int64_t PeakByTrying(const std::vector<Life>& lives, int64_t from) {
  int64_t last = from;
  for (const Life& life : lives) last = std::max(last, life.end());
  int64_t peak = 0;
  for (int64_t step = from; step <= last; ++step) peak = std::max(peak, Workload(lives, step));
  return peak;
}

// The lives that have started by `now`, as the tracker is told of them: joins and early ends
// in the order of their steps.
LoadTracker Track(const std::vector<Life>& lives, int64_t now) {
  LoadTracker tracker;
  for (int64_t step = 0; step <= now; ++step) {
    tracker.Advance(step);
    for (const Life& life : lives) {
      if (life.gone_at == step && life.start < step) tracker.Remove(life.entry());
      if (life.start == step) tracker.Add(life.entry());
    }
  }
  return tracker;
}

::testing::AssertionResult Exact(const std::vector<Life>& lives, int64_t now, Life newcomer, int64_t from,
                                 int64_t limit) {
  const LoadTracker tracker = Track(lives, now);
  if (tracker.Peak() != PeakByTrying(lives, now)) return ::testing::AssertionFailure() << "another peak";
  const int64_t start = tracker.EarliestStart(from, newcomer.prompt + 1, newcomer.steps, limit);
  const int64_t right = EarliestByTrying(lives, newcomer, std::max(now, from), limit);
  if (start != right) return ::testing::AssertionFailure() << "starts at " << start << ", should at " << right;
  newcomer.start = now;
  std::vector<Life> with = lives;
  with.push_back(newcomer);
  if (tracker.PeakWith(newcomer.prompt + 1, newcomer.steps) != PeakByTrying(with, now)) {
    return ::testing::AssertionFailure() << "another peak with the newcomer";
  }
  return ::testing::AssertionSuccess();
}

// Every pair of lives that start at steps 0 .. 2 with 1 or 3 prompt tokens and 1 .. 4 steps,
// each whole or ended early at any step, every newcomer of those kinds, every limit that matters.
TEST(LoadControlProof, AllSmallCases) {
  std::vector<Life> kinds;
  std::vector<Life> newcomers;
  for (const int64_t prompt : {1, 3}) {
    for (int64_t steps = 1; steps <= 4; ++steps) {
      newcomers.push_back({0, prompt, steps});
      for (int64_t start = 0; start <= 2; ++start) {
        kinds.push_back({start, prompt, steps});
        for (int64_t gone = start + 1; gone <= std::min<int64_t>(2, start + steps - 1); ++gone) {
          kinds.push_back({start, prompt, steps, gone});
        }
      }
    }
  }
  int64_t cases = 0;
  for (size_t a = 0; a < kinds.size(); ++a) {
    for (size_t b = a; b < kinds.size(); ++b) {
      const std::vector<Life> lives = {kinds[a], kinds[b]};
      for (const Life& newcomer : newcomers) {
        for (int64_t limit = newcomer.prompt + newcomer.steps; limit <= 14 + newcomer.prompt; ++limit) {
          ASSERT_TRUE(Exact(lives, 2, newcomer, 2, limit)) << "lives " << a << ", " << b << ", limit " << limit;
          ++cases;
        }
      }
    }
  }
  EXPECT_GT(cases, 60'000);
}

TEST(LoadControlProof, RandomCases) {
  std::mt19937 random(20240318);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  constexpr int kCases = 300'000;
  int held_back = 0;
  for (int i = 0; i < kCases; ++i) {
    const int64_t now = draw(0, 24);
    const int64_t longest = draw(1, 24);
    std::vector<Life> lives;
    for (int64_t n = draw(0, 12); n > 0; --n) {
      Life life{draw(0, now), draw(1, 20), draw(1, longest)};
      if (draw(0, 3) == 0 && life.steps > 1) life.gone_at = life.start + draw(1, life.steps - 1);
      if (life.gone_at > now) life.gone_at = -1;  // not known yet
      lives.push_back(life);
    }
    const Life newcomer{0, draw(1, 20), draw(1, 24)};
    const int64_t own = newcomer.prompt + newcomer.steps;
    const int64_t limit = own + draw(0, 80);
    const int64_t from = draw(0, 2) == 0 ? now + draw(0, 10) : now;
    ASSERT_TRUE(Exact(lives, now, newcomer, from, limit)) << "case " << i;
    held_back += EarliestByTrying(lives, newcomer, from, limit) > from;
  }
  EXPECT_GT(held_back, kCases / 4) << "too few cases in which the limit matters";
}

}  // namespace
}  // namespace fastdecode
