// Load control of the scheduler as a whole, against brute force. A referee keeps its own list of
// sequences and adds up every one of them at every step to come. At each plan of a pass:
//   - the limit is kept: with what has joined, at every later step, on every R-worker;
//   - no step is lost: the oldest prefilled sequence that was not let in would have passed
//     the limit, of its mini-batch's share or of the R-worker, had it started now.
// Random lives: unequal prompts and targets, early ends, cancellations, R-workers of unequal
// speed and memory, one to three mini-batches, with and without pacing. At least 10^5
// plans and 3 * 10^4 sequences held back are judged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "sworker/scheduler/scheduler.h"

namespace fastdecode {
namespace {

struct Seen {
  int64_t prompt = 0;
  int64_t steps = 0;  // as declared
  int64_t makes = 0;  // steps that it really makes
  int rworker = -1;
  int mini_batch = -1;        // -1: not decoding yet
  int64_t made = 0;           // steps planned so far
  int64_t oldest_since = -1;  // round since which it is its R-worker's oldest prefilled one
};

struct Tally {
  int64_t kept = 0, refused = 0, over = 0, let_wait = 0;
};

class Referee {
 public:
  Referee(uint32_t seed, Tally& tally) : random_(seed), tally_(tally) {
    options_.mini_batches = std::max(1, Draw(-1, 3));
    options_.max_batch = Draw(4, 24);
    options_.max_context = 64;
    options_.block_tokens = 8;
    options_.num_rworkers = Draw(1, 3);
    options_.pacing = Draw(0, 1) == 1;
    options_.workload_limit = Draw(64, 240);
    scheduler_ = std::make_unique<Scheduler>(options_);
    for (int r = 0; r < options_.num_rworkers; ++r) {
      scheduler_->RWorkerJoined(r, Draw(40, 200), Draw(8, 30) / 10.0);
    }
    limits_ = scheduler_->stats().workload_limits;
    ready_.resize(limits_.size());
    in_flight_.assign(limits_.size(), std::vector<int64_t>(static_cast<size_t>(options_.mini_batches)));
  }

  void Run(int rounds) {
    for (round_ = 0; round_ < rounds && tally_.over == 0 && tally_.let_wait == 0; ++round_) {
      for (int n = Draw(0, 3); n > 0 && known_.size() < 60; --n) Submit();
      Cancel();
      for (int m = 0; m < options_.mini_batches; ++m) {
        EndSpent(m);
        Prefill();
        Judge(m);
      }
    }
  }

 private:
  using Room = std::vector<int64_t>;  // W of one pair, for each of its passes to come

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void Submit() {
    Seen seen;
    seen.prompt = Draw(1, 40);
    seen.steps = Draw(1, 64 - static_cast<int>(seen.prompt));
    seen.makes = Draw(0, 2) == 0 && seen.steps > 1 ? Draw(1, static_cast<int>(seen.steps)) : seen.steps;
    const SequenceId id = ++last_;
    if (!scheduler_->Submit(id, static_cast<int>(seen.prompt), static_cast<int>(seen.steps)).ok()) return;
    known_[id] = seen;
  }

  void Forget(SequenceId id) {
    for (auto& queue : ready_) std::erase(queue, id);
    scheduler_->Finished(id);
    scheduler_->BlocksFreed(id);
    known_.erase(id);
  }

  void Cancel() {
    if (known_.empty() || Draw(0, 5) != 0) return;
    auto victim = known_.begin();
    std::advance(victim, Draw(0, static_cast<int>(known_.size()) - 1));
    if (prefilling_.count(victim->first) == 0) Forget(victim->first);
  }

  void EndSpent(int mini_batch) {
    std::vector<SequenceId> ended;
    for (const auto& [id, seen] : known_) {
      if (seen.mini_batch == mini_batch && seen.made >= seen.makes) ended.push_back(id);
    }
    for (SequenceId id : ended) Forget(id);
  }

  void Prefill() {
    if (!prefilling_.empty() && Draw(0, 7) > 0) return;
    for (SequenceId id : prefilling_) {
      scheduler_->PrefillDone(id);
      ready_[static_cast<size_t>(known_.at(id).rworker)].push_back(id);
    }
    prefilling_.clear();
    for (const PrefillItem& item : scheduler_->PlanPrefill()) {
      known_.at(item.sequence).rworker = item.rworker;
      prefilling_.insert(item.sequence);
    }
  }

  static void AddTo(Room& room, const Seen& seen) {
    const int64_t left = seen.steps - seen.made;
    if (static_cast<int64_t>(room.size()) < left) room.resize(static_cast<size_t>(left));
    for (int64_t j = 0; j < left; ++j) room[static_cast<size_t>(j)] += seen.prompt + seen.made + j;
  }

  static int64_t Peak(const Room& room) { return room.empty() ? 0 : *std::max_element(room.begin(), room.end()); }

  // What has joined, from the next pass of `mini_batch` on.
  Room Rest(int rworker, int mini_batch) const {
    Room room;
    for (const auto& [id, seen] : known_) {
      if (seen.rworker == rworker && seen.mini_batch == mini_batch) AddTo(room, seen);
    }
    return room;
  }

  int64_t PeakOfOthers(int rworker, int mini_batch) const {
    int64_t sum = 0;
    for (int m = 0; m < options_.mini_batches; ++m) {
      if (m == mini_batch) continue;
      sum += std::max(in_flight_[static_cast<size_t>(rworker)][static_cast<size_t>(m)], Peak(Rest(rworker, m)));
    }
    return sum;
  }

  int64_t InMiniBatch(int mini_batch) const {  // those that decode: at most what the scheduler counts
    return std::count_if(known_.begin(), known_.end(),
                         [&](const auto& entry) { return entry.second.mini_batch == mini_batch; });
  }

  void Judge(int mini_batch) {
    std::vector<Room> before;
    std::vector<std::vector<SequenceId>> queues = ready_;
    for (int r = 0; r < options_.num_rworkers; ++r) before.push_back(Rest(r, mini_batch));
    const PassPlan plan = scheduler_->PlanPass(mini_batch);
    for (const PassRow& row : plan.rows) {
      Seen& seen = known_.at(row.sequence);
      if (seen.mini_batch < 0) std::erase(ready_[static_cast<size_t>(row.rworker)], row.sequence);
      seen.mini_batch = mini_batch;
    }
    for (int r = 0; r < options_.num_rworkers; ++r) {
      Kept(r, mini_batch);
      NoStepLost(r, mini_batch, before[static_cast<size_t>(r)], queues[static_cast<size_t>(r)]);
      const Room rest = Rest(r, mini_batch);
      in_flight_[static_cast<size_t>(r)][static_cast<size_t>(mini_batch)] = rest.empty() ? 0 : rest[0];
    }
    for (const PassRow& row : plan.rows) ++known_.at(row.sequence).made;
  }

  // At every step to come, with what has joined: in sum over the mini-batches' peaks.
  void Kept(int rworker, int mini_batch) {
    ++tally_.kept;
    const int64_t limit = limits_[static_cast<size_t>(rworker)];
    tally_.over += Peak(Rest(rworker, mini_batch)) + PeakOfOthers(rworker, mini_batch) > limit;
  }

  void NoStepLost(int rworker, int mini_batch, Room room, const std::vector<SequenceId>& queue) {
    const auto& left = ready_[static_cast<size_t>(rworker)];
    if (left.empty()) return;
    const SequenceId oldest = left.front();
    Seen& seen = known_.at(oldest);
    if (seen.oldest_since < 0) seen.oldest_since = round_;
    // Before it has had its own mini-batch's boundary, another one is not its place yet.
    if (options_.mini_batches > 1 && round_ < seen.oldest_since + 2) return;
    // Those before it in the queue have joined, here or in another mini-batch.
    for (SequenceId id : queue) {
      if (id == oldest) break;
      const Seen& joined = known_.at(id);
      if (joined.mini_batch == mini_batch) AddTo(room, joined);
    }
    AddTo(room, seen);
    const int64_t limit = limits_[static_cast<size_t>(rworker)];
    const int64_t share = std::max(limit / options_.mini_batches, seen.prompt + seen.steps - 1);
    const int64_t capacity = (options_.max_batch + options_.mini_batches - 1) / options_.mini_batches;
    const bool fits = Peak(room) <= share && Peak(room) + PeakOfOthers(rworker, mini_batch) <= limit;
    // Others that are still prefilled for this mini-batch have its slots; the referee cannot
    // see which, and only judges where there are slots for all of them.
    if (InMiniBatch(mini_batch) + static_cast<int64_t>(prefilling_.size() + TotalReady()) > capacity &&
        options_.mini_batches > 1) {
      return;
    }
    ++tally_.refused;
    tally_.let_wait += fits;
  }

  size_t TotalReady() const {
    size_t total = 0;
    for (const auto& queue : ready_) total += queue.size();
    return total;
  }

  std::mt19937 random_;
  Tally& tally_;
  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<int64_t> limits_;
  std::map<SequenceId, Seen> known_;
  std::set<SequenceId> prefilling_;
  std::vector<std::vector<SequenceId>> ready_;   // an R-worker's, first prefilled first
  std::vector<std::vector<int64_t>> in_flight_;  // W of the last planned pass of a pair
  SequenceId last_ = 0;
  int round_ = 0;
};

TEST(JoinProof, TheLimitIsKeptAndNoStepIsLost) {
  Tally tally;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    Referee(seed, tally).Run(150);
    ASSERT_EQ(tally.over, 0) << "the limit would be passed, seed " << seed;
    ASSERT_EQ(tally.let_wait, 0) << "a sequence waits that would fit, seed " << seed;
  }
  std::printf("%ld plans keep the limit, %ld refusals were needed\n", static_cast<long>(tally.kept),
              static_cast<long>(tally.refused));
  EXPECT_GE(tally.kept, 100'000);
  EXPECT_GE(tally.refused, 30'000);
}

}  // namespace
}  // namespace fastdecode
