// One S-worker and its R-workers, as discrete events; what decides is the production scheduler.
//
// The engine's rules: the device runs one stage at a time, first ready first served; a layer's
// Q, K, V leave on the S-worker's one link, R-worker after R-worker; an R-worker attends to one
// mini-batch at a time; the next layer is ready when every O is back over the same link; at a
// pass's end its sequences have a token more, ended ones leave, and the scheduler plans the
// mini-batch's next pass. At most one prefill is in flight, a layer of it at a time on the device.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "common/traces/chrome_trace.h"
#include "plan/profile.h"
#include "sim/parts.h"
#include "sim/report.h"
#include "sim/sim_options.h"
#include "sworker/scheduler/scheduler.h"

namespace fastdecode::sim {

// Same options, requests and profile: same report and same timeline. One thread. The profile
// and the timeline, which may be null, must outlive it.
class ClusterSim {
 public:
  // Requests by arrival.
  ClusterSim(const plan::ModelProfile& profile, const SimOptions& options, std::vector<SimRequest> requests,
             TimelineTrace* timeline);
  SimReport Run();

 private:
  enum class Where : uint8_t { kAway, kWaiting, kPrefilling, kReady, kDecoding, kFreeing, kGone };
  struct Sequence {
    SimRequest request;
    int32_t tokens = 0;  // made so far
    int32_t rworker = -1;
    Nanos last_token = 0;
    Where where = Where::kAway;
  };
  enum class Kind : uint8_t {
    kArrival,      // the next requests are there
    kDeviceDone,   // index: a mini-batch, or kPrefill
    kRWorkerDone,  // index: an R-worker; number: mini-batch
    kStageReady,   // index: a mini-batch whose O is all there
    kFreed,        // number: a sequence whose blocks the R-worker has let go of
    kFault,        // number: of the fault that begins
    kFaultOver,    // the same
  };
  struct Event {
    Nanos at = 0;
    uint64_t order = 0;  // of making: what happens at one time happens in that order
    Kind kind = Kind::kArrival;
    int32_t index = 0;
    int64_t number = 0;
    uint32_t life = 0;  // of the R-worker: news of an old one is dropped
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  };
  struct Slice {
    int32_t rworker = 0;
    int32_t rows = 0;
    int64_t workload = 0;
    ExchangeTimes times;  // of this stage
    Nanos r_part = 0;     // in its kernels and in the queue before them
    bool waited_for = false;
  };
  struct Pass {
    bool running = false;
    int stage = 0;
    int waiting_for = 0;  // R-workers of this stage
    int64_t rows_now = 0;
    int64_t workload = 0;  // of the fullest R-worker
    Nanos begin = 0;
    Nanos o_there = 0;  // the last O so far
    Nanos r_part = 0;   // in the kernels and the queue before them, of that O
    std::vector<PassRow> rows;
    std::vector<Slice> slices;
    std::vector<int64_t> workloads;  // an R-worker's
    std::vector<int32_t> slice_of;   // an R-worker's, or -1
  };
  struct RWorkerState {
    bool live = false;
    uint32_t life = 0;
    Nanos free_at = 0;
    int64_t workload = 0;  // of the last passes of all mini-batches
  };
  struct Job {  // of the device
    int owner = 0;
    DeviceTimes times;
    bool unblocked_by_o = false;
    Nanos r_part = 0;  // what of a gap before it the R-part has caused
  };

  static constexpr int kPrefill = -1;

  void Push(Nanos at, Kind kind, int32_t index, int64_t number = 0, uint32_t life = 0);
  void Handle(const Event& event);
  void Arrive();
  void SubmitMore();
  void SubmitNext();
  void End(SequenceId id, Sequence& sequence);

  void StartDevice(const Job& job);
  void Attribute(const Job& job, Nanos begin);
  void DeviceDone(int owner);

  void Pump();  // plans what may begin now
  void PlanPrefill();
  void PrefillStageDone();
  void EndPrefill();
  void Prefilled(SequenceId id);

  void PlanPass(int mini_batch);
  void PlanIdle();
  void CutIntoSlices(Pass& pass);
  void CountWorkload(int mini_batch);
  void QueueStage(int mini_batch);
  void Send(int mini_batch);
  void Attended(int mini_batch, int rworker);
  void EndPass(int mini_batch);

  void SetFault(size_t index, bool on);
  void Lose(int rworker);
  void Return(int rworker);
  void BeginWindow();
  void EndWindow();
  void CountEnded(int64_t sequences);

  Pass& pass(int mini_batch) { return passes_[static_cast<size_t>(mini_batch)]; }
  RWorkerState& rworker(int index) { return rworkers_[static_cast<size_t>(index)]; }
  Sequence& sequence(SequenceId id) { return sequences_[static_cast<size_t>(id - 1)]; }

  const SimOptions options_;
  Scheduler scheduler_;
  Parts parts_;
  TimelineTrace* timeline_;
  std::vector<Sequence> sequences_;  // of id - 1
  std::vector<Pass> passes_;
  std::vector<RWorkerState> rworkers_;
  std::vector<bool> fault_is_on_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::vector<PrefillItem> prefill_;
  int64_t prefill_tokens_ = 0;
  int prefill_stage_ = 0;
  Nanos now_ = 0;
  uint64_t made_ = 0;
  size_t arrived_ = 0;
  int64_t with_scheduler_ = 0;  // submitted and not ended
  int64_t ended_ = 0;           // in any way
  Nanos device_free_ = 0;
  Nanos link_out_free_ = 0, link_in_free_ = 0;
  bool measuring_ = false;
  bool measured_ = false;  // the window is over
  Nanos measured_from_ = 0;
  std::vector<int64_t> mini_batch_passes_;
  Measurement current_;
  SimReport report_;
};

}  // namespace fastdecode::sim
