#include "sim/cluster_sim.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/logging.h"

namespace fastdecode::sim {

ClusterSim::ClusterSim(const plan::ModelProfile& profile, const SimOptions& options, std::vector<SimRequest> requests,
                       TimelineTrace* timeline)
    : options_(options),
      scheduler_(options.scheduler),
      parts_(profile, options_),
      timeline_(timeline),
      sequences_(requests.size()),
      passes_(static_cast<size_t>(options.scheduler.mini_batches)),
      rworkers_(static_cast<size_t>(options.scheduler.num_rworkers)),
      fault_is_on_(options.faults.size(), false),
      mini_batch_passes_(passes_.size(), 0) {
  for (size_t i = 0; i < requests.size(); ++i) sequences_[i].request = requests[i];
  for (Pass& one : passes_) {
    one.workloads.assign(rworkers_.size(), 0);
    one.slice_of.assign(rworkers_.size(), -1);
  }
  report_.requests = static_cast<int64_t>(requests.size());
  current_.r_busy.assign(rworkers_.size(), 0);
}

SimReport ClusterSim::Run() {
  for (int r = 0; r < options_.scheduler.num_rworkers; ++r) Return(r);
  report_.workload_limit = scheduler_.stats().workload_limit;
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const Fault& fault = options_.faults[i];
    const auto at = static_cast<Nanos>(fault.at_s * 1e9);
    const auto lasts = static_cast<Nanos>(fault.for_s * 1e9);
    Push(at, Kind::kFault, fault.rworker, static_cast<int64_t>(i));
    if (fault.for_s > 0) Push(at + lasts, Kind::kFaultOver, fault.rworker, static_cast<int64_t>(i));
  }
  if (!sequences_.empty()) Push(sequences_.front().request.arrival, Kind::kArrival, 0);
  if (options_.measure_from <= 0) BeginWindow();
  while (!events_.empty() && !measured_) {
    const Event event = events_.top();
    events_.pop();
    if (event.kind <= Kind::kFreed || ended_ < report_.requests) now_ = event.at;  // a fault after the end is none
    ++report_.events;
    Handle(event);
  }
  if (!measured_) {
    report_.unfinished = report_.requests - ended_;
    if (!measuring_) BeginWindow();
    EndWindow();
  }
  report_.end = now_;
  return report_;
}

void ClusterSim::Push(Nanos at, Kind kind, int32_t index, int64_t number, uint32_t life) {
  events_.push({.at = at, .order = made_++, .kind = kind, .index = index, .number = number, .life = life});
}

void ClusterSim::Handle(const Event& event) {
  switch (event.kind) {
    case Kind::kArrival:
      Arrive();
      break;
    case Kind::kDeviceDone:
      DeviceDone(event.index);
      break;
    case Kind::kRWorkerDone:
      if (rworker(event.index).life == event.life) Attended(static_cast<int>(event.number), event.index);
      break;
    case Kind::kStageReady:
      ++pass(event.index).stage;
      QueueStage(event.index);
      break;
    case Kind::kFreed: {
      const auto id = static_cast<SequenceId>(event.number);
      scheduler_.BlocksFreed(id);
      sequence(id).where = Where::kGone;
      const bool at_rest = std::none_of(passes_.begin(), passes_.end(), [](const Pass& one) { return one.running; });
      if (at_rest && prefill_.empty()) Pump();  // no pass's end will ask
      break;
    }
    case Kind::kFault:
      SetFault(static_cast<size_t>(event.number), true);
      break;
    case Kind::kFaultOver:
      SetFault(static_cast<size_t>(event.number), false);
      break;
  }
}

// Faults of one R-worker may overlap: it is as slow as all together make it, and back when none holds it down.
void ClusterSim::SetFault(size_t index, bool on) {
  const Fault& fault = options_.faults[index];
  fault_is_on_[index] = on;
  double slowdown = 1;
  int losses = 0;
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const Fault& other = options_.faults[i];
    if (!fault_is_on_[i] || other.rworker != fault.rworker) continue;
    if (other.kind == Fault::Kind::kSlow) slowdown *= other.factor;
    if (other.kind == Fault::Kind::kLost) ++losses;
  }
  parts_.SetSlowdown(fault.rworker, slowdown);
  const bool live = rworker(fault.rworker).live;
  if (live && losses > 0) Lose(fault.rworker);
  if (live || losses > 0) return;
  Return(fault.rworker);
  Pump();
}

// Those that are there, up to what is kept with the scheduler: a refused one takes nobody's place.
void ClusterSim::SubmitMore() {
  while (arrived_ < sequences_.size() && sequences_[arrived_].request.arrival <= now_ &&
         (options_.in_flight == 0 || with_scheduler_ < options_.in_flight)) {
    SubmitNext();
  }
}

void ClusterSim::Arrive() {
  SubmitMore();
  if (arrived_ < sequences_.size() && options_.in_flight == 0) {
    Push(sequences_[arrived_].request.arrival, Kind::kArrival, 0);
  }
  Pump();
}

void ClusterSim::SubmitNext() {
  const SequenceId id = ++arrived_;
  Sequence& s = sequence(id);
  if (options_.in_flight > 0) s.request.arrival = now_;
  if (!scheduler_.Submit(id, s.request.prompt, s.request.max_tokens).ok()) {
    s.where = Where::kGone;
    ++current_.refused;
    CountEnded(1);
    return;
  }
  s.where = Where::kWaiting;
  ++with_scheduler_;
}

// It has made all its tokens.
void ClusterSim::End(SequenceId id, Sequence& s) {
  scheduler_.Finished(id);
  s.where = Where::kFreeing;
  Push(now_ + parts_.Acknowledgement(s.rworker), Kind::kFreed, s.rworker, static_cast<int64_t>(id));
  ++current_.ended;
  current_.prompt_tokens += s.request.prompt;
  --with_scheduler_;
  CountEnded(1);
  if (options_.in_flight > 0) SubmitMore();
}

void ClusterSim::StartDevice(const Job& job) {
  const Nanos begin = std::max(now_, device_free_);
  Attribute(job, begin);
  device_free_ = begin + job.times.total();
  if (timeline_ != nullptr) {
    const Nanos copied_in = begin + job.times.copy_in;
    timeline_->Stage(job.owner, begin, copied_in, copied_in + job.times.compute, device_free_);
  }
  Push(device_free_, Kind::kDeviceDone, job.owner);
}

// As the engine's timeline shares out the time of the critical path.
void ClusterSim::Attribute(const Job& job, Nanos begin) {
  const Nanos gap = begin - std::max(device_free_, measured_from_);
  if (gap > 0 && job.unblocked_by_o) {
    const Nanos r_part = std::min(gap, job.r_part);
    current_.r_part += r_part;
    current_.wire += gap - r_part;
  } else if (gap > 0) {
    current_.idle += gap;  // plans take no time here: the profile's serving is the device's
  }
  current_.s_part += job.times.compute;
  current_.copy += job.times.copy_in + job.times.copy_out;
  if (job.owner != kPrefill) current_.s_busy += job.times.total();
}

void ClusterSim::DeviceDone(int owner) {
  if (owner == kPrefill) {
    PrefillStageDone();
  } else if (pass(owner).stage < parts_.stages()) {
    Send(owner);
  } else {
    EndPass(owner);
  }
}

void ClusterSim::Pump() {
  PlanPrefill();
  PlanIdle();
}

void ClusterSim::PlanPrefill() {
  while (prefill_.empty()) {
    const std::vector<PrefillItem> items = scheduler_.PlanPrefill();
    if (items.empty()) return;
    prefill_tokens_ = 0;
    for (const PrefillItem& item : items) {
      Sequence& s = sequence(item.sequence);
      s.where = Where::kPrefilling;
      s.rworker = item.rworker;
      prefill_tokens_ += s.request.prompt - 1;
      if (s.request.prompt > 1 && parts_.PrefillTakesTime()) {
        prefill_.push_back(item);
      } else {
        Prefilled(item.sequence);
      }
    }
    if (prefill_.empty()) continue;
    prefill_stage_ = 0;
    StartDevice({.owner = kPrefill, .times = {.compute = parts_.PrefillStage(prefill_tokens_)}});
  }
}

void ClusterSim::PrefillStageDone() {
  ++prefill_stage_;
  if (prefill_stage_ <= parts_.stages()) {
    const bool last = prefill_stage_ == parts_.stages();
    const Nanos time = last ? parts_.PrefillEnd(prefill_tokens_) : parts_.PrefillStage(prefill_tokens_);
    StartDevice({.owner = kPrefill, .times = {.compute = time}});
    return;
  }
  EndPrefill();
  Pump();
}

void ClusterSim::EndPrefill() {
  for (const PrefillItem& item : prefill_) Prefilled(item.sequence);
  prefill_.clear();
}

void ClusterSim::Prefilled(SequenceId id) {
  Sequence& s = sequence(id);
  if (s.where != Where::kPrefilling) return;  // lost meanwhile
  scheduler_.PrefillDone(id);
  s.where = Where::kReady;
}

void ClusterSim::Lose(int index) {
  RWorkerState& state = rworker(index);
  if (!state.live) return;
  state.live = false;
  ++state.life;
  state.workload = 0;
  if (timeline_ != nullptr) timeline_->RWorkerLost(index, now_);
  for (Pass& one : passes_) one.workloads[static_cast<size_t>(index)] = 0;
  const std::vector<SequenceId> ended = scheduler_.RWorkerLost(index);
  for (SequenceId id : ended) sequence(id).where = Where::kGone;
  current_.lost += static_cast<int64_t>(ended.size());
  with_scheduler_ -= static_cast<int64_t>(ended.size());
  for (int m = 0; m < options_.scheduler.mini_batches; ++m) {
    Pass& one = pass(m);
    const int32_t slice = one.slice_of[static_cast<size_t>(index)];
    if (!one.running || slice < 0) continue;
    Slice& dropped = one.slices[static_cast<size_t>(slice)];
    one.rows_now -= std::exchange(dropped.rows, 0);
    if (!std::exchange(dropped.waited_for, false)) continue;
    if (--one.waiting_for == 0) Push(std::max(now_, one.o_there), Kind::kStageReady, m);
  }
  CountEnded(static_cast<int64_t>(ended.size()));
  if (options_.in_flight > 0) Arrive();
}

void ClusterSim::Return(int index) {
  RWorkerState& state = rworker(index);
  state.live = true;
  state.free_at = now_;
  if (timeline_ != nullptr && now_ > 0) timeline_->RWorkerJoined(index, now_);
  for (SequenceId id : scheduler_.RWorkerJoined(index, options_.kv_blocks, parts_.speed(index))) {
    sequence(id).where = Where::kGone;
    ++current_.refused;
    --with_scheduler_;
    CountEnded(1);
  }
}

void ClusterSim::CountEnded(int64_t sequences) {
  ended_ += sequences;
  const auto share = static_cast<double>(ended_) / static_cast<double>(report_.requests);
  if (!measuring_ && share >= options_.measure_from) BeginWindow();
  if (measuring_ && !measured_ && share >= options_.measure_to) EndWindow();
}

void ClusterSim::BeginWindow() {
  measuring_ = true;
  measured_from_ = now_;
  current_ = {};
  current_.r_busy.assign(rworkers_.size(), 0);
  std::fill(mini_batch_passes_.begin(), mini_batch_passes_.end(), 0);
}

void ClusterSim::EndWindow() {
  measured_ = true;
  current_.wall = now_ - measured_from_;
  current_.steps = *std::max_element(mini_batch_passes_.begin(), mini_batch_passes_.end());
  // A stage that the window's edge cuts was counted whole, and what goes on now not at all.
  const Nanos rest = current_.wall - current_.s_part - current_.copy - current_.r_part - current_.wire - current_.idle;
  (rest > 0 ? current_.idle : current_.s_part) += rest;
  report_.measured = current_;
}

}  // namespace fastdecode::sim
