// LoadTracker against brute force: every step of every sequence, added up by hand.
#include "sworker/scheduler/load_control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

struct Sequence {
  int64_t start = 0;
  int64_t prompt = 0;
  int64_t steps = 0;

  LoadEntry entry() const { return {.start = start, .end = start + steps - 1, .tokens_at_start = prompt + 1}; }
};

// The definition: the j-th decode step reads prompt + j cached tokens.
int64_t TokensRead(const Sequence& s, int64_t step) {
  const int64_t j = step - s.start + 1;
  return j >= 1 && j <= s.steps ? s.prompt + j : 0;
}

int64_t Workload(const std::vector<Sequence>& all, int64_t step) {
  int64_t sum = 0;
  for (const Sequence& s : all) sum += TokensRead(s, step);
  return sum;
}

int64_t PeakFrom(const std::vector<Sequence>& all, int64_t step) {
  int64_t peak = 0;
  int64_t last = step;
  for (const Sequence& s : all) last = std::max(last, s.start + s.steps);
  for (int64_t t = step; t <= last; ++t) peak = std::max(peak, Workload(all, t));
  return peak;
}

bool Fits(std::vector<Sequence> all, const Sequence& newcomer, int64_t limit) {
  all.push_back(newcomer);
  for (int64_t t = newcomer.start; t < newcomer.start + newcomer.steps; ++t) {
    if (Workload(all, t) > limit) return false;
  }
  return true;
}

// Everything that the tracker says, against the definition.
void ExpectExact(const LoadTracker& tracker, const std::vector<Sequence>& all, Sequence newcomer, int64_t from,
                 int64_t limit) {
  const int64_t now = tracker.step();
  EXPECT_EQ(tracker.At(now), Workload(all, now));
  EXPECT_EQ(tracker.At(now + 3), Workload(all, now + 3));
  EXPECT_EQ(tracker.Peak(), PeakFrom(all, now));
  std::vector<Sequence> with = all;
  newcomer.start = now;
  with.push_back(newcomer);
  EXPECT_EQ(tracker.PeakWith(newcomer.prompt + 1, newcomer.steps), PeakFrom(with, now));

  const int64_t start = tracker.EarliestStart(from, newcomer.prompt + 1, newcomer.steps, limit);
  ASSERT_GE(start, std::max(from, now));
  newcomer.start = start;
  EXPECT_TRUE(Fits(all, newcomer, limit)) << "the limit is passed";
  for (newcomer.start = std::max(from, now); newcomer.start < start; ++newcomer.start) {
    EXPECT_FALSE(Fits(all, newcomer, limit)) << "step " << newcomer.start << " would have done";
  }
}

// Every set of three sequences of up to 3 prompt tokens and 4 steps, with every limit.
TEST(LoadTrackerTest, AllSmallCases) {
  std::vector<Sequence> kinds;
  for (int64_t start = 0; start <= 2; ++start) {
    for (int64_t prompt : {1, 3}) {
      for (int64_t steps = 1; steps <= 4; ++steps) kinds.push_back({start, prompt, steps});
    }
  }
  for (size_t a = 0; a < kinds.size(); ++a) {
    for (size_t b = a; b < kinds.size(); ++b) {
      LoadTracker tracker;
      std::vector<Sequence> all;
      for (int64_t step = 0; step <= 2; ++step) {
        tracker.Advance(step);
        for (const Sequence& s : {kinds[a], kinds[b]}) {
          if (s.start != step) continue;
          tracker.Add(s.entry());
          all.push_back(s);
        }
      }
      for (const Sequence& c : kinds) {
        const int64_t own = c.prompt + c.steps;
        for (int64_t limit = own; limit <= own + 14; ++limit) ExpectExact(tracker, all, c, 2 + c.start, limit);
      }
      if (::testing::Test::HasFailure()) FAIL() << "sets " << a << ", " << b;
    }
  }
}

// Long random lives: joins only when they fit, early ends, time passing. With every join
// checked, W must stay within the limit at every step that really happens.
TEST(LoadTrackerTest, RandomLives) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t limit = draw(60, 600);
    LoadTracker tracker;
    std::vector<Sequence> all;
    int joined = 0;
    for (int64_t step = 0; step < 150; ++step) {
      tracker.Advance(step);
      std::erase_if(all, [&](const Sequence& s) { return s.start + s.steps <= step; });
      if (!all.empty() && draw(0, 9) == 0) {
        const auto victim = all.begin() + draw(0, static_cast<int64_t>(all.size()) - 1);
        tracker.Remove(victim->entry());
        all.erase(victim);
      }
      for (int64_t tries = draw(0, 3); tries > 0; --tries) {
        const int64_t prompt = draw(1, 30);
        const Sequence newcomer{step, prompt, draw(1, 29)};
        ExpectExact(tracker, all, newcomer, step + draw(0, 5), limit);
        const bool fits = tracker.PeakWith(prompt + 1, newcomer.steps) <= limit;
        EXPECT_EQ(fits, Fits(all, newcomer, limit));
        EXPECT_EQ(fits, tracker.EarliestStart(step, prompt + 1, newcomer.steps, limit) == step);
        if (!fits) continue;
        tracker.Add(newcomer.entry());
        all.push_back(newcomer);
        ++joined;
      }
      ASSERT_LE(Workload(all, step), limit);
    }
    EXPECT_GT(joined, 5);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

// The paper's own figure: micro-batches of M = B*F/S every F steps peak at B(S+F)/2.
TEST(LoadTrackerTest, MicroBatchesPeakAtHalf) {
  constexpr int64_t kBatch = 1024, kLength = 1024, kInterval = 32;
  LoadTracker tracker;
  int64_t peak = 0;
  for (int64_t step = 0; step < 3 * kLength; ++step) {
    tracker.Advance(step);
    if (step % kInterval == 0) {
      for (int64_t i = 0; i < kBatch * kInterval / kLength; ++i) {
        tracker.Add({.start = step, .end = step + kLength - 1, .tokens_at_start = 1});
      }
    }
    peak = std::max(peak, tracker.At(step));
  }
  EXPECT_EQ(peak, kBatch * (kLength + kInterval) / 2);
}

TEST(LoadTrackerTest, EmptyTakesAnythingNow) {
  LoadTracker tracker;
  tracker.Advance(7);
  EXPECT_EQ(tracker.Peak(), 0);
  EXPECT_EQ(tracker.EarliestStart(0, 11, 5, 15), 7);
  EXPECT_EQ(tracker.EarliestStart(9, 11, 5, 15), 9);
  EXPECT_EQ(tracker.PeakWith(11, 5), 15);
}

}  // namespace
}  // namespace fastdecode
