// Algorithm 1 as its pseudocode circulates, and where it goes wrong. Kept so that nobody
// "corrects" load_control towards it:
//   1. a new micro-batch is appended before the loop that adds it to all of them, so its own
//      end counts m * S twice, and later ones wait without need;
//   2. the earliest step is looked for at the ends of the others, never at the newcomer's own:
//      a micro-batch that passes the limit by itself is let in. (With equal lengths, or as long
//      as a newcomer is counted at ends beyond its own, nothing else follows from it.)
//   3. the "+ 1" belongs to a sequence of length 1 at its first step, while (E - t) * m counts
//      it as 0 there: each start is one step late.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "sworker/scheduler/load_control.h"

namespace fastdecode {
namespace {

// In the pseudocode's counting: at step t a sequence that started at s has length t - s, up to
// its end s + S.
struct MicroBatch {
  int64_t start = 0;
  int64_t size = 0;    // m
  int64_t length = 0;  // S
  int64_t end() const { return start + length; }
};

class Published {
 public:
  // `mended`: without the first slip.
  explicit Published(int64_t limit, bool mended = false) : limit_(limit), mended_(mended) {}

  void Add(const MicroBatch& added) {
    ends_.push_back(added.end());
    workloads_.push_back(mended_ ? 0 : added.size * added.length);
    for (size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] > added.start) workloads_[i] += (ends_[i] - added.start) * added.size;
    }
  }

  int64_t EarliestStep(int64_t from, int64_t size) const {
    int64_t earliest = from;
    for (size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] <= from || workloads_[i] + (ends_[i] - from) * size <= limit_) continue;
      const int64_t length_left = std::max<int64_t>(0, limit_ - workloads_[i]) / size;
      earliest = std::max(earliest, ends_[i] - length_left + 1);
    }
    return earliest;
  }

  int64_t workload(size_t i) const { return workloads_[i]; }

 private:
  int64_t limit_;
  bool mended_;
  std::vector<int64_t> ends_;
  std::vector<int64_t> workloads_;
};

int64_t Workload(const std::vector<MicroBatch>& all, int64_t step) {
  int64_t sum = 0;
  for (const MicroBatch& one : all) {
    if (step >= one.start && step <= one.end()) sum += one.size * (step - one.start);
  }
  return sum;
}

bool KeepsLimit(std::vector<MicroBatch> all, const MicroBatch& newcomer, int64_t limit) {
  all.push_back(newcomer);
  for (int64_t step = newcomer.start; step <= newcomer.end(); ++step) {
    if (Workload(all, step) > limit) return false;
  }
  return true;
}

int64_t EarliestByTrying(const std::vector<MicroBatch>& all, MicroBatch newcomer, int64_t limit) {
  while (!KeepsLimit(all, newcomer, limit)) ++newcomer.start;
  return newcomer.start;
}

// The tracker in the same counting: length 0 at the first of S + 1 steps.
int64_t OurEarliest(const std::vector<MicroBatch>& all, const MicroBatch& newcomer, int64_t limit) {
  LoadTracker tracker;
  for (const MicroBatch& one : all) {
    tracker.Advance(one.start);
    for (int64_t i = 0; i < one.size; ++i) {
      tracker.Add({.start = one.start, .end = one.end(), .tokens_at_start = 0});
    }
  }
  // One sequence at a time, all at the step that the last of them needs.
  LoadTracker with = tracker;
  with.Advance(newcomer.start);
  for (;;) {
    LoadTracker tried = with;
    bool fits = true;
    for (int64_t i = 0; i < newcomer.size && fits; ++i) {
      fits = tried.PeakWith(0, newcomer.length + 1) <= limit;
      if (fits) {
        tried.Add({.start = tried.step(), .end = tried.step() + newcomer.length, .tokens_at_start = 0});
      }
    }
    if (fits) return with.step();
    with.Advance(with.step() + 1);
  }
}

TEST(PublishedAlgorithm, CountsANewMicroBatchTwiceAtItsOwnEnd) {
  const MicroBatch first{.start = 0, .size = 4, .length = 10};
  Published published(1000);
  published.Add(first);
  EXPECT_EQ(Workload({first}, first.end()), 40);
  EXPECT_EQ(published.workload(0), 80);

  // So with room for a second one from step 4 on (40 + 6 * 4 = 64), it lets none in before the
  // first has all but ended.
  const int64_t limit = 64;
  Published strict(limit);
  strict.Add(first);
  EXPECT_EQ(EarliestByTrying({first}, {.start = 1, .size = 4, .length = 10}, limit), 4);
  EXPECT_EQ(strict.EarliestStep(1, 4), 11);
}

TEST(PublishedAlgorithm, NeverChecksTheNewcomersOwnEnd) {
  const MicroBatch running{.start = 0, .size = 1, .length = 13};
  const int64_t limit = 116;
  Published published(limit);
  published.Add(running);
  const MicroBatch narrow{.start = 10, .size = 30, .length = 2};
  ASSERT_EQ(published.EarliestStep(10, narrow.size), 10);  // 26 + 3 * 30 = 116
  EXPECT_TRUE(KeepsLimit({running}, narrow, limit)) << "its own end reads 12 + 60";
  // A longer one passes the limit at its own end, whenever it starts. Only that end would tell;
  // the pseudocode does not even ask for the length.
  const MicroBatch longer{.start = 10, .size = 30, .length = 5};
  ASSERT_EQ(published.EarliestStep(10, longer.size), 10);
  EXPECT_EQ(Workload({running, longer}, longer.end()), 150);
  EXPECT_FALSE(KeepsLimit({running}, longer, limit));
}

TEST(PublishedAlgorithm, WaitsWithoutNeedWhereOursIsExact) {
  std::mt19937 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int too_late = 0;
  int mended_too_late = 0;
  constexpr int kCases = 3000;
  for (int i = 0; i < kCases; ++i) {
    std::vector<MicroBatch> running;
    const MicroBatch newcomer{.start = draw(5, 10), .size = draw(1, 6), .length = draw(1, 20)};
    for (int64_t start = 0; start < newcomer.start; start += draw(1, 5)) {
      running.push_back({.start = start, .size = draw(1, 6), .length = draw(5, 20)});
    }
    // One that the running ones keep.
    int64_t limit = newcomer.size * newcomer.length;
    for (int64_t step = 0; step <= 30; ++step) limit = std::max(limit, Workload(running, step));
    limit += draw(0, 100);
    Published published(limit);
    Published mended(limit, true);
    for (const MicroBatch& one : running) {
      published.Add(one);
      mended.Add(one);
    }
    const int64_t right = EarliestByTrying(running, newcomer, limit);
    const int64_t theirs = published.EarliestStep(newcomer.start, newcomer.size);
    EXPECT_GE(theirs, right);
    too_late += theirs > right;
    const int64_t without_first_slip = mended.EarliestStep(newcomer.start, newcomer.size);
    mended_too_late += without_first_slip > right;
    ASSERT_EQ(OurEarliest(running, newcomer, limit), right) << "case " << i;
  }
  std::printf("of %d cases: %d too late; without the double count %d\n", kCases, too_late, mended_too_late);
  EXPECT_GT(too_late, kCases / 2);
  EXPECT_GT(mended_too_late, kCases / 10);
}

}  // namespace
}  // namespace fastdecode
