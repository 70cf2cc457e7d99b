#include "sworker/scheduler/scheduler.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "common/base/logging.h"
#include "sworker/scheduler/books.h"
#include "sworker/scheduler/pacing.h"
#include "sworker/scheduler/placement.h"

namespace fastdecode {
namespace {

// How many waiting requests behind a head that cannot start are looked at in one plan.
constexpr int kLookahead = 32;

template <typename T>
void EraseValue(std::vector<T>& values, const T& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  CHECK(found != values.end());
  values.erase(found);
}

}  // namespace

struct Scheduler::State {
  explicit State(const SchedulerOptions& options) : pacer(options.interval_steps) {
    CHECK_GT(options.mini_batches, 0);
    CHECK_GT(options.max_batch, 0);
    CHECK_GT(options.max_context, 0);
    CHECK_GT(options.block_tokens, 0);
    CHECK_GT(options.num_rworkers, 0);
    CHECK_GE(options.workload_limit, 0);
    books.options = options;
    books.rworkers.resize(static_cast<size_t>(options.num_rworkers));
    books.mini_batch_sizes.resize(static_cast<size_t>(options.mini_batches));
    planned_at.resize(static_cast<size_t>(options.mini_batches));
    for (RWorker& rworker : books.rworkers) rworker.pairs.resize(static_cast<size_t>(options.mini_batches));
  }

  RWorker& rworker_at(int index) {
    CHECK_GE(index, 0);
    CHECK_LT(index, books.options.num_rworkers);
    return books.rworkers[static_cast<size_t>(index)];
  }
  RWorker& rworker_of(const Sequence& s) { return rworker_at(s.rworker); }
  Pair& pair_of(const Sequence& s) { return rworker_of(s).pairs[static_cast<size_t>(s.mini_batch)]; }

  bool FitsSomewhere(const Sequence& s) const;
  bool FitsLive(const Sequence& s) const;
  Status Refusal(const Sequence& s, int max_tokens) const;

  void LeaveQueue(Sequence& s);
  void TakePlace(Sequence& s, const Place& place);
  // Out of its mini-batch and of max_batch; its KV blocks stay.
  void LeavePlace(Sequence& s);
  void Forget(const Sequence& s) { books.sequences.erase(SequenceId{s.id}); }

  // Starts that need no token, and all that may start now.
  bool StartsFree(const Sequence& s, const Pace& pace) const;
  bool MayStart(const Sequence& s, const Pace& pace) const { return StartsFree(s, pace) || pacer.Ready(); }
  void PlanStarts(const Pace& pace, std::vector<PrefillItem>& items);
  void Start(Sequence& s, const Place& place, const Pace& pace, std::vector<PrefillItem>& items);

  void CountRound(int mini_batch);
  void JoinReady(RWorker& rworker, int mini_batch);
  void Join(RWorker& rworker, int mini_batch, Sequence& s);

  Books books;
  Pacer pacer;
  uint64_t next_order = 0;
  uint64_t paid_head = 0;            // order + 1 of a head that waits for room and owes no pacing token
  uint64_t passed_head = 0;          // order + 1 of the head that others passed ...
  int passed_by = 0;                 // ... and how many on its own R-worker
  int last_mini_batch = 0;           // that had rows
  std::vector<uint64_t> planned_at;  // a mini-batch: the count of PlanPass at its last one
  uint64_t plans = 0;
};

Scheduler::Scheduler(const SchedulerOptions& options) : state_(std::make_unique<State>(options)) {}
Scheduler::~Scheduler() = default;

// ---- Requests and R-workers come and go.

bool Scheduler::State::FitsSomewhere(const Sequence& s) const {
  return std::any_of(books.rworkers.begin(), books.rworkers.end(),
                     [&](const RWorker& r) { return r.known && books.FitsEmpty(r, s); });
}

bool Scheduler::State::FitsLive(const Sequence& s) const {
  return std::any_of(books.rworkers.begin(), books.rworkers.end(),
                     [&](const RWorker& r) { return r.live && books.FitsEmpty(r, s); });
}

Status Scheduler::State::Refusal(const Sequence& s, int max_tokens) const {
  int64_t most_blocks = 0;
  int64_t highest_limit = 0;
  bool any = false;
  for (const RWorker& rworker : books.rworkers) {
    if (!rworker.known) continue;
    any = true;
    most_blocks = std::max(most_blocks, rworker.total_blocks);
    highest_limit = std::max(highest_limit, rworker.limit);
  }
  if (!any) return Unavailable("no R-worker has joined yet");
  std::ostringstream text;
  text << s.prompt << " prompt tokens and up to " << max_tokens << " output tokens need " << books.Blocks(s.tokens)
       << " KV blocks of " << books.options.block_tokens << " tokens; the largest R-worker has " << most_blocks;
  if (books.options.load_control) {
    text << "; they read up to " << s.final_tokens() << " cached tokens a step, the workload limit is "
         << highest_limit;
  }
  text << ": shorten the request, or raise rworkers.kv_memory or load_control.workload_limit";
  return {StatusCode::kResourceExhausted, text.str()};
}

Status Scheduler::Submit(SequenceId sequence, int prompt_tokens, int max_tokens) {
  Books& books = state_->books;
  CHECK_GT(prompt_tokens, 0);
  CHECK_GT(max_tokens, 0);
  CHECK_LE(int64_t{prompt_tokens} + max_tokens, books.options.max_context) << "the caller clips by the context";
  Sequence s;
  s.id = sequence;
  s.prompt = prompt_tokens;
  s.decode_steps = max_tokens - 1;
  s.tokens = int64_t{prompt_tokens} + max_tokens;
  if (!state_->FitsSomewhere(s)) return state_->Refusal(s, max_tokens);
  s.order = state_->next_order++;
  const auto [entry, inserted] = books.sequences.emplace(sequence, s);
  CHECK(inserted) << "sequence " << sequence << " was submitted twice";
  books.waiting.emplace(s.order, &entry->second);
  books.demand.Add(s, books.Blocks(s.tokens), +1);
  return OkStatus();
}

std::vector<SequenceId> Scheduler::RWorkerJoined(int rworker, int64_t kv_blocks, double speed) {
  RWorker& r = state_->rworker_at(rworker);
  Books& books = state_->books;
  CHECK(!r.live) << "R-worker " << rworker << " joined twice";
  CHECK_GT(kv_blocks, 0);
  CHECK_GT(speed, 0);
  r.known = r.live = true;
  r.speed = speed;
  r.total_blocks = kv_blocks;
  r.limit = books.LimitOf(kv_blocks, speed);
  std::vector<SequenceId> hopeless;
  for (auto next = books.waiting.begin(); next != books.waiting.end();) {
    Sequence& s = *next++->second;
    if (state_->FitsSomewhere(s)) continue;
    hopeless.push_back(s.id);
    state_->LeaveQueue(s);
    books.demand.Add(s, books.Blocks(s.tokens), -1);
    state_->Forget(s);
  }
  return hopeless;
}

std::vector<SequenceId> Scheduler::RWorkerLost(int rworker) {
  RWorker& r = state_->rworker_at(rworker);
  Books& books = state_->books;
  std::vector<SequenceId> ended;
  for (auto next = books.sequences.begin(); next != books.sequences.end();) {
    Sequence& s = next++->second;
    if (s.rworker != rworker) continue;
    if (s.phase != Phase::kReleasing) {
      ended.push_back(s.id);
      state_->LeavePlace(s);
    }
    state_->Forget(s);
  }
  r.live = false;
  r.reserved_blocks = 0;
  for (Pair& pair : r.pairs) pair.planned_workload = 0;
  std::sort(ended.begin(), ended.end());
  return ended;
}

void Scheduler::Finished(SequenceId sequence) {
  const auto found = state_->books.sequences.find(sequence);
  if (found == state_->books.sequences.end()) return;
  Sequence& s = found->second;
  if (s.phase == Phase::kReleasing) return;
  if (s.phase == Phase::kWaiting) {
    state_->LeaveQueue(s);
    state_->books.demand.Add(s, state_->books.Blocks(s.tokens), -1);
    state_->Forget(s);
    return;
  }
  state_->LeavePlace(s);
  s.phase = Phase::kReleasing;
  state_->pacer.OnEnd();
}

void Scheduler::BlocksFreed(SequenceId sequence) {
  const auto found = state_->books.sequences.find(sequence);
  if (found == state_->books.sequences.end() || found->second.phase == Phase::kWaiting) return;
  Finished(sequence);  // without its KV it computes no more, in whatever order the news came
  Sequence& s = found->second;
  RWorker& rworker = state_->rworker_of(s);
  rworker.reserved_blocks -= state_->books.Blocks(s.tokens);
  CHECK_GE(rworker.reserved_blocks, 0);
  state_->Forget(s);
}

// ---- Places.

void Scheduler::State::LeaveQueue(Sequence& s) { CHECK_EQ(books.waiting.erase(s.order), 1u); }

void Scheduler::State::TakePlace(Sequence& s, const Place& place) {
  s.rworker = place.rworker;
  s.mini_batch = place.mini_batch;
  s.phase = Phase::kPrefilling;
  rworker_of(s).reserved_blocks += books.Blocks(s.tokens);
  pair_of(s).pending.push_back(&s);
  pair_of(s).Touch();
  books.mini_batch_sizes[static_cast<size_t>(s.mini_batch)] += 1;
  books.in_flight += 1;
}

void Scheduler::State::LeavePlace(Sequence& s) {
  Pair& pair = pair_of(s);
  if (s.phase == Phase::kPrefilling || s.phase == Phase::kReady) EraseValue(pair.pending, &s);
  if (s.phase == Phase::kReady) EraseValue(rworker_of(s).ready, &s);
  if (s.phase == Phase::kDecoding) {
    EraseValue(pair.active, &s);
    pair.tracker.Remove(s.load);
  }
  pair.Touch();
  books.mini_batch_sizes[static_cast<size_t>(s.mini_batch)] -= 1;
  books.in_flight -= 1;
  books.demand.Add(s, books.Blocks(s.tokens), -1);
}

// ---- Prefill: who starts.

bool Scheduler::State::StartsFree(const Sequence& s, const Pace& pace) const {
  if (!books.options.load_control || !books.options.pacing || s.decode_steps == 0) return true;
  // With nothing in flight no round would ever bring a token.
  return books.in_flight == 0 || static_cast<double>(books.in_flight) < pace.burst || paid_head == s.order + 1;
}

void Scheduler::State::Start(Sequence& s, const Place& place, const Pace& pace, std::vector<PrefillItem>& items) {
  if (!StartsFree(s, pace)) pacer.Take();
  LeaveQueue(s);
  TakePlace(s, place);
  items.push_back({s.id, s.rworker});
}

void Scheduler::State::PlanStarts(const Pace& pace, std::vector<PrefillItem>& items) {
  std::optional<Reservation> reservation;  // set once the head has found no room
  int64_t tokens = 0;
  int looked_at = 0;
  for (auto next = books.waiting.begin(); next != books.waiting.end();) {
    Sequence& s = *next++->second;
    if (!items.empty() && tokens + s.prompt > books.options.prefill_tokens_per_step) return;
    if (!MayStart(s, pace)) return;
    if (!FitsLive(s)) continue;  // its R-worker is away: nobody can delay it
    std::optional<Place> place = FindPlace(books, s);
    if (reservation && ++looked_at > kLookahead) return;
    if (place && reservation) {
      const bool beside_head = place->rworker == reservation->place().rworker;
      // Estimates slip; the count makes sure that a head cannot be put off for ever.
      if (!reservation->Allows(s, *place) || (beside_head && ++passed_by > books.options.max_batch)) continue;
    }
    if (place) {
      Start(s, *place, pace, items);
      tokens += s.prompt;
      continue;
    }
    if (reservation) continue;
    if (books.in_flight >= books.options.max_batch) return;
    if (passed_head != s.order + 1) passed_by = 0;
    passed_head = s.order + 1;
    if (!StartsFree(s, pace)) pacer.Take();
    paid_head = s.order + 1;
    reservation.emplace(books, s);
  }
}

std::vector<PrefillItem> Scheduler::PlanPrefill() {
  std::vector<PrefillItem> items;
  const Pace pace = ComputePace(state_->books);
  state_->PlanStarts(pace, items);
  state_->pacer.Trim(pace.rate);
  return items;
}

void Scheduler::PrefillDone(SequenceId sequence) {
  const auto found = state_->books.sequences.find(sequence);
  if (found == state_->books.sequences.end() || found->second.phase == Phase::kReleasing) return;
  Sequence& s = found->second;
  CHECK(s.phase == Phase::kPrefilling) << "sequence " << sequence << " was not being prefilled";
  if (s.decode_steps == 0) {
    EraseValue(state_->pair_of(s).pending, &s);
    s.phase = Phase::kSpent;
    return;
  }
  s.phase = Phase::kReady;
  state_->rworker_of(s).ready.push_back(&s);
}

// ---- Passes.

void Scheduler::State::CountRound(int mini_batch) {
  if (mini_batch <= last_mini_batch) pacer.OnRound(ComputePace(books).rate);
  last_mini_batch = mini_batch;
}

void Scheduler::State::Join(RWorker& rworker, int mini_batch, Sequence& s) {
  Pair& old_pair = pair_of(s);
  EraseValue(old_pair.pending, &s);
  old_pair.Touch();
  books.mini_batch_sizes[static_cast<size_t>(s.mini_batch)] -= 1;
  books.mini_batch_sizes[static_cast<size_t>(mini_batch)] += 1;
  s.mini_batch = mini_batch;
  s.phase = Phase::kDecoding;
  Pair& pair = rworker.pairs[static_cast<size_t>(mini_batch)];
  const int64_t step = pair.tracker.step();
  s.load = {.start = step, .end = step + s.decode_steps - 1, .tokens_at_start = s.prompt + 1};
  pair.tracker.Add(s.load);
  pair.active.push_back(&s);
}

// First prefilled, first joined, with one exception: a sequence that its own mini-batch could
// not take goes to whichever mini-batch of its R-worker can. Whoever is held back holds back
// all younger ones that want the same room, so it gets in when the older ones have ended.
void Scheduler::State::JoinReady(RWorker& rworker, int mini_batch) {
  size_t kept = 0;
  bool closed = false;
  for (size_t i = 0; i < rworker.ready.size(); ++i) {
    Sequence* s = rworker.ready[i];
    const bool own = s->mini_batch == mini_batch;
    const bool room = own || books.mini_batch_sizes[static_cast<size_t>(mini_batch)] < books.mini_batch_capacity();
    JoinVerdict verdict = JoinVerdict::kPairFull;
    if (!closed && room && (own || s->waited)) verdict = CheckJoin(books, rworker, mini_batch, *s);
    if (verdict == JoinVerdict::kFits) {
      Join(rworker, mini_batch, *s);
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

PassPlan Scheduler::PlanPass(int mini_batch) {
  Books& books = state_->books;
  CHECK_GE(mini_batch, 0);
  CHECK_LT(mini_batch, books.options.mini_batches);
  std::vector<uint64_t>& planned_at = state_->planned_at;
  const uint64_t previous = std::exchange(planned_at[static_cast<size_t>(mini_batch)], ++state_->plans);
  PassPlan plan;
  for (int r = 0; r < books.options.num_rworkers; ++r) {
    RWorker& rworker = books.rworkers[static_cast<size_t>(r)];
    for (size_t m = 0; m < rworker.pairs.size(); ++m) {
      // Left out since this mini-batch's last turn: its last pass is long over.
      Pair& pair = rworker.pairs[m];
      if (planned_at[m] < previous && pair.active.empty()) pair.planned_workload = 0;
    }
    Pair& pair = rworker.pairs[static_cast<size_t>(mini_batch)];
    pair.planned_workload = 0;  // that pass is over
    state_->JoinReady(rworker, mini_batch);
    const int64_t step = pair.tracker.step();
    pair.planned_workload = pair.tracker.At(step);
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
  if (!plan.rows.empty()) state_->CountRound(mini_batch);
  return plan;
}

// ---- Asked from outside.

bool Scheduler::Idle() const { return state_->books.sequences.empty(); }

SchedulerStats Scheduler::stats() const {
  const Books& books = state_->books;
  SchedulerStats stats;
  stats.workload.resize(books.rworkers.size());
  for (const RWorker& rworker : books.rworkers) {
    stats.workload_limits.push_back(rworker.limit);
    stats.workload_limit = std::max(stats.workload_limit, rworker.limit);
    stats.reserved_blocks.push_back(rworker.reserved_blocks);
    stats.total_blocks.push_back(rworker.live ? rworker.total_blocks : 0);
  }
  for (const auto& [id, s] : books.sequences) {
    stats.waiting += s.phase == Phase::kWaiting;
    stats.prefilling += s.phase == Phase::kPrefilling;
    stats.ready += s.phase == Phase::kReady;
    stats.decoding += s.phase == Phase::kDecoding || s.phase == Phase::kSpent;
    if ((s.phase == Phase::kDecoding || s.phase == Phase::kSpent) && s.decode_steps > 0) {
      const int64_t step =
          books.rworkers[static_cast<size_t>(s.rworker)].pairs[static_cast<size_t>(s.mini_batch)].tracker.step();
      const int64_t last = std::min(step - 1, s.load.end);
      stats.workload[static_cast<size_t>(s.rworker)] += s.load.tokens_at_start + last - s.load.start;
    }
  }
  return stats;
}

}  // namespace fastdecode
