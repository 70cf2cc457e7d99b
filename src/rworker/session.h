// The data path of one session with one S-worker, from its grant to its end.
//
// Two threads of its own: the loop thread owns the endpoint and does nothing but move
// messages, so that the next mini-batch's rows arrive while this one's are computed; the
// compute thread owns the ComputePool and the AttentionService. Messages go from one to
// the other by two small rings, slots and all, without a copy. All of it ends with the
// session: what a peer's old life left behind cannot be touched by its next one.
//
// Thread rule: the control thread's object. notify is called from the session's threads
// when opened() or ended() has news.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/transport/transport.h"
#include "rworker/attention_service.h"
#include "rworker/session_counters.h"
#include "rworker/session_plan.h"
#include "rworker/spsc_ring.h"

namespace fastdecode::rworker {

class Session {
 public:
  struct Environment {  // pointers are borrowed
    PoolMemory* memory = nullptr;
    const kernels::AttentionKernel* kernel = nullptr;
    int threads = 0;
    CpuTopology topology;  // whose nodes are the memory's parts, in this order
    bool pin = true;
    std::function<void()> notify;
  };

  // Starts the threads, which set up the cache: see opened(). kResourceExhausted: this host gives none.
  static Result<std::unique_ptr<Session>> Start(const SessionPlan& plan, Environment environment);
  ~Session();  // ends the session and waits for its threads

  // Empty until the cache is set up; then its size or why there is none.
  std::optional<Result<KvStats>> opened() const;
  // Both streams are there: serves until the peer fails or RequestEnd. Once.
  void Serve(std::unique_ptr<Endpoint> endpoint);
  // Asks the session to end soon; ended() tells when it has.
  void RequestEnd();
  // Empty until endpoint and cache are gone and the memory is free for the next session.
  // Ok: RequestEnd was called; an error: what the peer or its stream did.
  std::optional<Status> ended() const;

  const SessionPlan& plan() const { return plan_; }
  Heartbeat counters() const { return counters_.Snapshot(); }

 private:
  // One message on its way through the compute thread.
  struct Job {
    RecvSlot in;
    SendSlot out;  // index -1: it has no answer
    Status status;
  };
  // One being computed and one behind it: enough to keep the compute thread busy, and a
  // decode message never waits behind more than that of the other lane.
  static constexpr int kMaxInFlight = 2;

  // Received and not yet given to the compute thread; capacity: the lane's slots.
  struct Waiting {
    std::vector<RecvSlot> ring;
    size_t first = 0, count = 0;
  };

  Session(const SessionPlan& plan, Environment environment, Fd wake);
  void LoopThread();
  void ComputeThread();
  void Compute(ComputePool* pool);
  void Open(Result<KvStats> opened);
  Result<std::unique_ptr<AttentionService>> CreateService(ComputePool* pool);
  bool WaitForEndpoint();
  Status ServeMessages();
  Status TakeCompletions(bool& progress);
  Status Receive(bool& progress);
  Status Dispatch(bool& progress);
  void SendFault(const Status& status);
  void DrainCompute();
  void Sleep(int endpoint_fd);
  void Wake();

  const SessionPlan plan_;
  const Environment environment_;
  const Fd wake_;  // eventfd: completions and requests of the control thread
  SessionCounters counters_;

  mutable std::mutex mutex_;
  std::optional<Result<KvStats>> opened_;     // under mutex_
  std::optional<Status> ended_;               // under mutex_
  std::unique_ptr<Endpoint> given_endpoint_;  // under mutex_
  std::atomic<bool> end_requested_{false};

  // Loop thread.
  std::unique_ptr<Endpoint> endpoint_;
  std::array<Waiting, kNumLanes> waiting_;
  int first_lane_ = 0;
  int in_flight_ = 0;

  SpscRing<Job, 4> to_compute_;
  SpscRing<Job, 4> from_compute_;
  static_assert(kMaxInFlight <= 4);
  std::thread compute_thread_, loop_thread_;
};

}  // namespace fastdecode::rworker
