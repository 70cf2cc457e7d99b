#include "sworker/scheduler/books.h"

#include <algorithm>
#include <cmath>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

void EraseValue(std::vector<Sequence*>& values, const Sequence* value) {
  const auto found = std::find(values.begin(), values.end(), value);
  CHECK(found != values.end());
  values.erase(found);
}

}  // namespace

void Pair::Project(const Sequence& sequence) { projection_.Add(sequence.LoadFrom(projection_.step())); }

const LoadTracker& Pair::Projection() {
  if (pending.empty()) return tracker;
  if (projection_stale_) {
    projection_ = tracker;
    for (const Sequence* sequence : pending) Project(*sequence);
    projection_stale_ = false;
  }
  return projection_;
}

void Pair::AddPending(Sequence* sequence) {
  pending.push_back(sequence);
  // One plan may place a thousand: no starting afresh for each.
  if (!projection_stale_) Project(*sequence);
}

int64_t Pair::CommittedPeak() const { return std::max(planned_workload, tracker.Peak()); }

void Demand::Add(const Sequence& sequence, int64_t blocks, int sign) {
  sequences += sign;
  decode_steps += sign * static_cast<double>(sequence.decode_steps);
  squared_steps += sign * static_cast<double>(sequence.decode_steps * sequence.decode_steps);
  final_tokens += sign * static_cast<double>(sequence.final_tokens());
  workload += sign * static_cast<double>(sequence.total_workload());
  block_steps += sign * static_cast<double>(blocks * sequence.decode_steps);
}

Books::Books(const SchedulerOptions& scheduler_options) : options(scheduler_options) {
  CHECK_GT(options.mini_batches, 0);
  CHECK_GT(options.max_batch, 0);
  CHECK_GT(options.max_context, 0);
  CHECK_GT(options.block_tokens, 0);
  CHECK_GT(options.num_rworkers, 0);
  CHECK_GE(options.workload_limit, 0);
  mini_batch_sizes.resize(static_cast<size_t>(options.mini_batches));
  rworkers.resize(static_cast<size_t>(options.num_rworkers));
  for (RWorker& rworker : rworkers) rworker.pairs.resize(mini_batch_sizes.size());
}

RWorker& Books::rworker(int index) {
  CHECK_GE(index, 0);
  CHECK_LT(index, options.num_rworkers);
  return rworkers[static_cast<size_t>(index)];
}

Sequence* Books::Find(SequenceId id) {
  const auto found = sequences.find(id);
  return found == sequences.end() ? nullptr : &found->second;
}

int64_t Books::LimitOf(int64_t kv_blocks, double speed) const {
  if (options.workload_limit > 0) {
    return static_cast<int64_t>(std::floor(static_cast<double>(options.workload_limit) * speed));
  }
  // B(S + F)/2 over the R-workers, S = max_context, and F the interval at which each pair
  // gets one sequence at a time: F = S * pairs / B. Without the second term a pair of few
  // sequences could never be full.
  const double context = options.max_context;
  const double steady =
      0.5 * context * (static_cast<double>(options.max_batch) / options.num_rworkers + options.mini_batches) * speed;
  const int64_t cached = kv_blocks * options.block_tokens;
  const int64_t largest = std::min<int64_t>(options.max_context, cached);
  return std::max(largest, std::min(cached, static_cast<int64_t>(steady)));
}

bool Books::FitsEmpty(const RWorker& rworker, const Sequence& s) const {
  return Blocks(s) <= rworker.total_blocks && (!options.load_control || s.final_tokens() <= rworker.limit);
}

bool Books::FitsSomewhere(const Sequence& s) const {
  return std::any_of(rworkers.begin(), rworkers.end(), [&](const RWorker& r) { return r.known && FitsEmpty(r, s); });
}

bool Books::FitsLive(const Sequence& s) const {
  return std::any_of(rworkers.begin(), rworkers.end(), [&](const RWorker& r) { return r.live && FitsEmpty(r, s); });
}

void Books::Enqueue(const Sequence& sequence) {
  const auto [entry, inserted] = sequences.emplace(sequence.id, sequence);
  CHECK(inserted) << "sequence " << sequence.id << " was submitted twice";
  Sequence& s = entry->second;
  s.order = next_order_++;
  waiting.emplace(s.order, &s);
  demand.Add(s, Blocks(s), +1);
}

void Books::DropWaiting(Sequence& s) {
  CHECK_EQ(waiting.erase(s.order), 1u);
  demand.Add(s, Blocks(s), -1);
  Forget(s);
}

void Books::TakePlace(Sequence& s, int rworker_index, int mini_batch) {
  CHECK_EQ(waiting.erase(s.order), 1u);
  s.rworker = rworker_index;
  s.mini_batch = mini_batch;
  s.phase = Phase::kPrefilling;
  RWorker& r = rworker(rworker_index);
  r.reserved_blocks += Blocks(s);
  ++r.held;
  CHECK_LE(r.reserved_blocks, r.total_blocks);
  pair_of(s).AddPending(&s);
  mini_batch_sizes[static_cast<size_t>(mini_batch)] += 1;
  in_flight += 1;
  last_placed = rworker_index;
}

void Books::Prefilled(Sequence& s) {
  s.phase = Phase::kReady;
  rworker(s.rworker).ready.push_back(&s);
}

void Books::Join(Sequence& s, int mini_batch) {
  EraseValue(pair_of(s).pending, &s);
  pair_of(s).Touch();
  mini_batch_sizes[static_cast<size_t>(s.mini_batch)] -= 1;
  mini_batch_sizes[static_cast<size_t>(mini_batch)] += 1;
  s.mini_batch = mini_batch;
  s.phase = Phase::kDecoding;
  Pair& pair = pair_of(s);
  s.load = s.LoadFrom(pair.tracker.step());
  pair.tracker.Add(s.load);
  pair.active.push_back(&s);
  pair.Touch();
}

void Books::LeavePlace(Sequence& s) {
  Pair& pair = pair_of(s);
  const bool was_pending = s.phase == Phase::kPrefilling || s.phase == Phase::kReady;
  if (was_pending) EraseValue(pair.pending, &s);
  if (s.phase == Phase::kReady) EraseValue(rworker(s.rworker).ready, &s);
  if (s.phase == Phase::kDecoding) {
    EraseValue(pair.active, &s);
    pair.tracker.Remove(s.load);
  }
  const int64_t last_step = pair.tracker.step() - 1;
  if (!was_pending && s.load.end >= last_step) {
    pair.live_workload -= s.load.tokens_at_start + last_step - s.load.start;
  }
  pair.Touch();
  mini_batch_sizes[static_cast<size_t>(s.mini_batch)] -= 1;
  in_flight -= 1;
  demand.Add(s, Blocks(s), -1);
  s.phase = Phase::kReleasing;
}

}  // namespace fastdecode
