#include "sworker/scheduler/scheduler.h"

#include <algorithm>
#include <sstream>

#include "common/base/logging.h"
#include "sworker/scheduler/admission.h"
#include "sworker/scheduler/books.h"
#include "sworker/scheduler/pacing.h"
#include "sworker/scheduler/passes.h"

namespace fastdecode {
namespace {

// Why no R-worker could ever take `s`, with the numbers.
Status Refusal(const Books& books, const Sequence& s) {
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
  text << s.tokens - s.decode_steps << " prompt tokens and up to " << s.decode_steps << " output tokens ";
  if (books.Blocks(s) > most_blocks) {
    text << "need " << books.Blocks(s) << " KV blocks of " << books.options.block_tokens
         << " tokens, the largest R-worker has " << most_blocks << ": shorten the request or raise rworkers.kv_memory";
  } else {
    text << "read up to " << s.final_tokens() << " cached tokens a step, the workload limit is " << highest_limit
         << ": shorten the request or raise load_control.workload_limit";
  }
  return {StatusCode::kResourceExhausted, text.str()};
}

}  // namespace

struct Scheduler::State {
  explicit State(const SchedulerOptions& options)
      : books(options), pacer(options), admission(books, pacer), passes(books, pacer) {}

  Books books;
  Pacer pacer;
  Admission admission;
  Passes passes;
};

Scheduler::Scheduler(const SchedulerOptions& options) : state_(std::make_unique<State>(options)) {}
Scheduler::~Scheduler() = default;

std::vector<SequenceId> Scheduler::RWorkerJoined(int rworker, int64_t kv_blocks, double speed) {
  Books& books = state_->books;
  RWorker& r = books.rworker(rworker);
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
    if (books.FitsSomewhere(s)) continue;
    hopeless.push_back(s.id);
    books.DropWaiting(s);
  }
  return hopeless;
}

std::vector<SequenceId> Scheduler::RWorkerLost(int rworker) {
  Books& books = state_->books;
  RWorker& r = books.rworker(rworker);
  std::vector<SequenceId> ended;
  for (auto next = books.sequences.begin(); next != books.sequences.end();) {
    Sequence& s = next++->second;
    if (s.rworker != rworker) continue;
    if (s.phase != Phase::kReleasing) {
      ended.push_back(s.id);
      books.LeavePlace(s);
    }
    books.Forget(s);
  }
  r.live = false;
  r.reserved_blocks = 0;
  r.held = 0;
  for (Pair& pair : r.pairs) {
    CHECK_EQ(pair.live_workload, 0);
    pair.planned_workload = 0;
    pair.start_tokens = 1;
  }
  std::sort(ended.begin(), ended.end());
  return ended;
}

Status Scheduler::Submit(SequenceId sequence, int prompt_tokens, int max_tokens) {
  Books& books = state_->books;
  CHECK_GT(prompt_tokens, 0);
  CHECK_GT(max_tokens, 0);
  CHECK_LE(int64_t{prompt_tokens} + max_tokens, books.options.max_context) << "the caller clips by the context";
  Sequence s;
  s.id = sequence;
  s.prefill_tokens = prompt_tokens - 1;
  s.decode_steps = max_tokens;
  s.tokens = int64_t{prompt_tokens} + max_tokens;
  if (!books.FitsSomewhere(s)) return Refusal(books, s);
  books.Enqueue(s);
  return OkStatus();
}

std::vector<PrefillItem> Scheduler::PlanPrefill() { return state_->admission.Plan(); }

void Scheduler::PrefillDone(SequenceId sequence) {
  Sequence* s = state_->books.Find(sequence);
  if (s == nullptr || s->phase == Phase::kReleasing) return;
  CHECK(s->phase == Phase::kPrefilling) << "sequence " << sequence << " was not being prefilled";
  state_->books.Prefilled(*s);
}

PassPlan Scheduler::PlanPass(int mini_batch) { return state_->passes.Plan(mini_batch); }

void Scheduler::Finished(SequenceId sequence) {
  Books& books = state_->books;
  Sequence* s = books.Find(sequence);
  if (s == nullptr || s->phase == Phase::kReleasing) return;
  if (s->phase == Phase::kWaiting) {
    books.DropWaiting(*s);
    return;
  }
  Pacer::Refund(books, *s);
  books.LeavePlace(*s);
}

void Scheduler::BlocksFreed(SequenceId sequence) {
  Books& books = state_->books;
  Sequence* s = books.Find(sequence);
  if (s == nullptr || s->phase == Phase::kWaiting) return;
  Finished(sequence);  // without its KV it computes no more, in whatever order the news came
  RWorker& rworker = books.rworker(s->rworker);
  rworker.reserved_blocks -= books.Blocks(*s);
  CHECK_GE(rworker.reserved_blocks, 0);
  --rworker.held;
  books.Forget(*s);
}

bool Scheduler::Idle() const { return state_->books.sequences.empty(); }

SchedulerStats Scheduler::stats() const {
  const Books& books = state_->books;
  SchedulerStats stats;
  stats.waiting = static_cast<int64_t>(books.waiting.size());
  for (const RWorker& rworker : books.rworkers) {
    stats.workload_limits.push_back(rworker.limit);
    stats.workload_limit = std::max(stats.workload_limit, rworker.limit);
    stats.reserved_blocks.push_back(rworker.reserved_blocks);
    stats.total_blocks.push_back(rworker.live ? rworker.total_blocks : 0);
    stats.workload.push_back(0);
    stats.ready += static_cast<int64_t>(rworker.ready.size());
    for (const Pair& pair : rworker.pairs) {
      stats.workload.back() += pair.live_workload;
      stats.prefilling += static_cast<int64_t>(pair.pending.size());
    }
  }
  stats.prefilling -= stats.ready;
  stats.decoding = books.in_flight - stats.prefilling - stats.ready;
  return stats;
}

}  // namespace fastdecode
