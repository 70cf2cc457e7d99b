// The S-worker's links and data path (RWorkerPool, RemoteAttention) against real R-workers
// (RWorkerServer), in one process, over real transports and seeded faults: what an engine
// would do without a model. Q, K and V follow from their indices; each O is compared, bit by
// bit, with the same kernel's in this thread.
//
// From the seed follows what is asked for and what goes wrong when, counted in polls, messages
// and passes; how the threads of the R-workers interleave does not.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/transport/faulty_transport.h"
#include "rworker/attention_service.h"
#include "rworker/server.h"
#include "sworker/attention/remote_attention.h"
#include "sworker/rworkers/rworker_pool.h"

namespace fastdecode {

// All that is drawn from a seed.
struct SessionPlan {
  struct Prompt {
    int rworker = 0;
    int mini_batch = 0;
    int prompt_tokens = 0;
    int steps = 0;
  };
  struct RWorker {
    // Of its sessions, in turn; later ones have none. Those on shared memory can be cut, too.
    std::vector<FaultPlan> faults;
    int64_t restart_at_pass = -1;  // the R-worker ends and another one starts at its port; -1: never
  };

  explicit SessionPlan(uint64_t seed);

  SessionOptions session;
  std::vector<RWorker> rworkers;
  std::vector<Prompt> prompts;  // by R-worker
  bool harmless = true;         // only delays: nothing may be lost
};

// What every O row should be.
class SessionOracle {
 public:
  explicit SessionOracle(const SessionOptions& session, size_t num_sequences);

  void Prefill(SequenceId sequence, int tokens);
  // The next token: O of each layer, [num_layers, q_width].
  std::vector<uint16_t> Step(SequenceId sequence, int position);

 private:
  const AttentionShape shape_;
  rworker::ComputePool pool_{1, /*pin=*/false};
  rworker::PoolMemory memory_;
  std::unique_ptr<rworker::AttentionService> service_;
  uint64_t steps_ = 0;
};

class SessionSim {
 public:
  enum class State { kWaiting, kPrefilling, kRunning, kFreeing, kDone, kLost };
  struct Sequence {
    SessionPlan::Prompt prompt;
    State state = State::kWaiting;
    int position = 0;
    int steps = 0;
  };

  explicit SessionSim(const SessionPlan& plan);
  ~SessionSim();

  // Until every sequence is done or lost; else what it waits for.
  Status Run();
  // Whether every R-worker says, within its heartbeats, that it holds nothing any more.
  bool AllIsFree() const;

  const std::vector<Sequence>& sequences() const { return sequences_; }
  const std::vector<Status>& losses() const { return losses_; }
  int faults() const { return faults_; }          // that came to pass, each of which may lose one R-worker once
  int wrong_rows() const { return wrong_rows_; }  // O that differs
  int right_rows() const { return right_rows_; }

 private:
  struct Joined {
    uint32_t incarnation = 0;  // 0: lost
    bool can_be_cut = false;
    std::unique_ptr<Endpoint> endpoint;
  };
  struct Event {
    int rworker = 0;
    Joined joined;
    Status lost;
  };
  struct MiniBatch {
    enum class Phase { kIdle, kBegin, kAcquire, kAwaitO } phase = Phase::kIdle;
    uint64_t step = 0;
    int layer = 0;
    std::vector<size_t> rows;  // into sequences_
    std::vector<StepRow> step_rows;
    std::vector<RowSlice> slices;
    std::vector<std::vector<uint16_t>> expected;  // a row
  };
  struct Push {
    size_t sequence = 0;
    int layer = 0;
    int position = 0;
    bool finished = false;  // FinishPrefill was taken
  };

  void StartRWorker(size_t rworker, std::string address);
  void Wake();
  bool TakeControl();
  bool TakeAttention();
  void Join(int rworker, Joined joined);
  void OnLost(int rworker, const Status& reason);
  void OnAttended(const AttentionEvent& event);
  void EndPass(MiniBatch& batch);
  bool AdvancePush();
  bool AdvancePass(int mini_batch);
  bool Plan(MiniBatch& batch, int mini_batch);
  bool Over() const;
  bool Sleep();
  std::string Describe() const;

  const SessionPlan plan_;
  SessionOracle oracle_;
  RemoteAttention attention_;
  std::vector<std::unique_ptr<rworker::RWorkerServer>> servers_;
  std::vector<Sequence> sequences_;  // id - 1
  std::vector<MiniBatch> mini_batches_;
  std::optional<Push> push_;
  std::vector<uint32_t> incarnations_;
  std::vector<size_t> lives_;  // sessions so far
  std::vector<Status> losses_;
  uint64_t next_step_ = 0;
  int64_t passes_ = 0;
  int faults_ = 0, wrong_rows_ = 0, right_rows_ = 0;

  const Fd wake_;
  std::mutex mutex_;
  std::deque<Event> events_;  // under mutex_
  std::unique_ptr<RWorkerPool> pool_;
};

}  // namespace fastdecode
