// Runs the model: decode passes of k mini-batches and prefills, interleaved on one
// device stream, so that one mini-batch's S-part runs while another's rows are with
// the R-workers.
//
// An event loop on a thread of its own, which owns the attention backend (and so the
// data endpoints): commands from the scheduler's thread, ends of work on the stream,
// and attention events move small state machines (DecodePass, PrefillBatch) forward. It
// decides nothing: which rows run is the scheduler's business, when a sequence ends
// the serving core's.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/fd.h"
#include "common/base/status.h"
#include "sworker/attention/backend.h"
#include "sworker/device/device_runtime.h"
#include "sworker/engine/decode_pass.h"
#include "sworker/engine/engine_context.h"
#include "sworker/engine/prefill_batch.h"
#include "sworker/engine/timeline.h"
#include "sworker/model/model.h"
#include "sworker/request.h"
#include "sworker/scheduler/scheduler.h"

namespace fastdecode {

struct EngineOptions {
  int mini_batches = 2;
  int max_rows = 0;            // of one mini-batch
  int max_prefill_tokens = 0;  // of one batch of prompts
  int max_prefill_prompts = 0;
};

// Called on the engine thread; must not block. Sequences are those of the commands.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  // A pass ended: a token for each row whose R-worker was there to the end.
  virtual void OnPassDone(int mini_batch, std::span<const TokenUpdate> tokens) = 0;
  // All K/V of these prompts but their last tokens' are on the R-workers: they may decode.
  virtual void OnPrefillDone(std::span<const SequenceId> sequences) = 0;
  virtual void OnFreed(SequenceId sequence) = 0;  // as Release asked
  virtual void OnRWorkerLost(int rworker, const Status& reason) = 0;
  virtual void OnFatal(const Status& reason) = 0;  // the device failed: nothing goes on
};

class Engine {
 public:
  // All outlive the engine; `attention` belongs to the engine thread from Start on.
  Engine(const EngineOptions& options, const Model& model, DeviceRuntime& device, AttentionBackend& attention,
         Timeline& timeline, EngineListener& listener);
  ~Engine();  // Stops.

  void Start();
  void Stop();  // Drops what runs; joins the thread.

  // Commands; any thread. They run on the engine thread in the order of the calls.
  // One batch is on the device at a time: the next starts when every prompt of the last one is
  // done (OnPrefillDone) or lost.
  void Prefill(std::vector<PrefillRequest> prompts);
  void RunPass(int mini_batch, PassPlan plan);  // one in flight a mini-batch
  void NoPass(int mini_batch);                  // nothing to decode until the next RunPass
  void Release(SequenceId sequence);      // forget it and free its blocks; OnFreed answers, also for one that was lost
  void Post(std::function<void()> work);  // anything that touches `attention`

 private:
  void Run();
  bool RunCommands();
  bool RunCompletions();
  bool RunAttention();
  void Handle(AttentionEvent& event);
  void StartPass(int mini_batch, const PassPlan& plan);
  void FinishPass(int mini_batch);
  void Begin(const PrefillRequest& prompt);
  void StartPrefill();
  void PromptPushed(SequenceId sequence);
  void EndPrefill();
  void WarnOverflow(EngineSequence* sequence);
  void UpdateIdle();
  void Wait();

  EngineOptions options_;
  AttentionBackend& attention_;
  Timeline& timeline_;
  EngineListener& listener_;
  std::unique_ptr<DeviceStream> stream_;
  CompletionQueue completions_;
  EngineContext context_;
  PrefillBuffers prefill_buffers_;
  std::vector<std::unique_ptr<DecodePass>> passes_;
  std::vector<bool> planned_;              // a mini-batch: a plan is expected or runs
  std::unique_ptr<PrefillBatch> prefill_;  // null: none in flight
  // They wait for the remains of one whose prompts were lost.
  std::deque<std::vector<PrefillRequest>> next_prefills_;
  std::unordered_map<SequenceId, EngineSequence> sequences_;
  std::vector<StageEnd> ends_;
  uint64_t next_step_ = 0;
  std::vector<TokenUpdate> updates_;
  std::vector<int> wait_fds_;
  std::vector<pollfd> poll_fds_;

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  bool stop_ = false;                            // guarded by mutex_
  std::thread thread_;
};

}  // namespace fastdecode
