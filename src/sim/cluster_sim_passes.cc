// ClusterSim: the life of a pass.
#include <algorithm>

#include "sim/cluster_sim.h"

namespace fastdecode::sim {

void ClusterSim::PlanIdle() {
  // What another mini-batch's last pass has read counts until that one is asked: so twice, where
  // nothing else goes on that would ask again.
  for (int turn = 0; turn < 2; ++turn) {
    bool running = !prefill_.empty();
    for (int m = 0; m < options_.scheduler.mini_batches; ++m) {
      if (!pass(m).running) PlanPass(m);
      running = running || pass(m).running;
    }
    if (running) break;
  }
}

void ClusterSim::PlanPass(int mini_batch) {
  Pass& one = pass(mini_batch);
  one.rows = scheduler_.PlanPass(mini_batch).rows;
  CutIntoSlices(one);
  CountWorkload(mini_batch);
  one.running = !one.rows.empty();
  if (!one.running) return;
  one.begin = now_;
  one.stage = 0;
  QueueStage(mini_batch);
}

// Rows are ordered by R-worker: a slice each.
void ClusterSim::CutIntoSlices(Pass& one) {
  for (const Slice& slice : one.slices) one.slice_of[static_cast<size_t>(slice.rworker)] = -1;
  one.slices.clear();
  one.rows_now = static_cast<int64_t>(one.rows.size());
  for (const PassRow& row : one.rows) {
    Sequence& s = sequence(row.sequence);
    s.where = Where::kDecoding;
    if (one.slices.empty() || one.slices.back().rworker != row.rworker) {
      one.slice_of[static_cast<size_t>(row.rworker)] = static_cast<int32_t>(one.slices.size());
      one.slices.emplace_back().rworker = row.rworker;
    }
    Slice& slice = one.slices.back();
    ++slice.rows;
    slice.workload += s.request.prompt + s.tokens;
  }
}

// W of an R-worker is over the last passes of all mini-batches.
void ClusterSim::CountWorkload(int mini_batch) {
  Pass& one = pass(mini_batch);
  for (size_t r = 0; r < rworkers_.size(); ++r) {
    rworkers_[r].workload -= one.workloads[r];
    one.workloads[r] = 0;
  }
  for (const Slice& slice : one.slices) {
    one.workloads[static_cast<size_t>(slice.rworker)] = slice.workload;
    rworker(slice.rworker).workload += slice.workload;
  }
  one.workload = 0;
  for (const RWorkerState& state : rworkers_) one.workload = std::max(one.workload, state.workload);
}

void ClusterSim::QueueStage(int mini_batch) {
  Pass& one = pass(mini_batch);
  const StageKind kind = one.stage == 0                ? StageKind::kFirst
                         : one.stage < parts_.stages() ? StageKind::kMiddle
                                                       : StageKind::kLast;
  StartDevice({.owner = mini_batch,
               .times = parts_.Stage(kind, static_cast<int>(one.rows_now)),
               .unblocked_by_o = one.stage > 0,
               .r_part = one.r_part});
}

// Q, K and V leave, one R-worker's after the other's.
void ClusterSim::Send(int mini_batch) {
  Pass& one = pass(mini_batch);
  one.o_there = now_;
  one.r_part = 0;
  for (Slice& slice : one.slices) {
    if (slice.rows == 0) continue;  // lost
    RWorkerState& state = rworker(slice.rworker);
    slice.times = parts_.Exchange(slice.rworker, slice.rows, slice.workload);
    const Nanos leaves = std::max(link_out_free_, now_);
    link_out_free_ = leaves + slice.times.out;
    const Nanos there = leaves + slice.times.there;
    const Nanos start = std::max(there, state.free_at);
    state.free_at = start + slice.times.busy;
    slice.r_part = start - there + slice.times.kernels;
    slice.waited_for = true;
    ++one.waiting_for;
    current_.r_busy[static_cast<size_t>(slice.rworker)] += slice.times.kernels;
    current_.wire_bytes += slice.times.bytes;
    if (timeline_ != nullptr) timeline_->RPart(slice.rworker, mini_batch, start, state.free_at);
    Push(state.free_at, Kind::kRWorkerDone, slice.rworker, mini_batch, state.life);
  }
  if (one.waiting_for == 0) Push(now_, Kind::kStageReady, mini_batch);
}

// An R-worker has its O: it comes back over the S-worker's link, in turn.
void ClusterSim::Attended(int mini_batch, int index) {
  Pass& one = pass(mini_batch);
  Slice& slice = one.slices[static_cast<size_t>(one.slice_of[static_cast<size_t>(index)])];
  slice.waited_for = false;
  const Nanos leaves = std::max(link_in_free_, now_ + slice.times.latency_back);
  link_in_free_ = leaves + slice.times.in;
  one.o_there = std::max(one.o_there, leaves + slice.times.back);
  one.r_part = slice.r_part;
  if (--one.waiting_for == 0) Push(one.o_there, Kind::kStageReady, mini_batch);
}

// Every row that is still there has one more token.
void ClusterSim::EndPass(int mini_batch) {
  Pass& one = pass(mini_batch);
  ++mini_batch_passes_[static_cast<size_t>(mini_batch)];
  ++current_.passes;
  current_.step.Add(now_ - one.begin);
  current_.workload_peak = std::max(current_.workload_peak, one.workload);
  current_.workload_sum += static_cast<double>(one.workload);
  if (timeline_ != nullptr) timeline_->Pass(mini_batch, one.begin, now_, one.rows_now, one.workload);
  int64_t together = 0;  // rows whose last token came with the pass before, as of most
  const Nanos since = one.begin;
  for (const PassRow& row : one.rows) {
    Sequence& s = sequence(row.sequence);
    if (s.where != Where::kDecoding || s.rworker != row.rworker) continue;  // lost
    ++current_.output_tokens;
    ++current_.decode_rows;
    if (s.tokens++ == 0) {
      current_.ttft.Add(now_ - s.request.arrival);
    } else if (s.last_token == since) {
      ++together;
    } else {
      current_.itl.Add(now_ - s.last_token);
    }
    s.last_token = now_;
    if (s.tokens == s.request.tokens) End(row.sequence, s);
  }
  if (together > 0) current_.itl.Add(now_ - since, together);
  one.running = false;
  if (!measured_) Pump();
}

}  // namespace fastdecode::sim
