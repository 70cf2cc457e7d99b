// The S-worker's middle: owns every request from its acceptance to its last word.
//
// A thread of its own (the scheduler thread) takes requests from the API, tokens and
// ends from the engine, asks the Scheduler what to run, and tells the engine. It alone
// decides when a sequence ends; each request gets exactly one RequestFinished.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/api/api_messages.h"
#include "common/config/config.h"
#include "sworker/engine/engine.h"
#include "sworker/engine/timeline.h"
#include "sworker/request.h"
#include "sworker/rworkers/rworker_pool.h"
#include "sworker/scheduler/scheduler.h"
#include "sworker/server/request_sink.h"
#include "sworker/serving/plan_watch.h"

namespace fastdecode {

// Where the core's words go. Set once, before Start.
struct ServingOutputs {
  std::function<void(std::span<const TokenUpdate>, std::span<const RequestFinished>)> publish;
  // An R-worker's data path is gone: its control connection should go too.
  std::function<void(int rworker, uint32_t incarnation, const Status& reason)> report_lost;
  std::function<void(const Status& reason)> fatal;  // the device failed: end the process
  std::function<nlohmann::json()> rworker_stats;    // for Stats()
  PlanWatch* plan = nullptr;                        // for Stats(); null: no profile. Outlives the core
};

// Thread rule: public functions from any thread. Callbacks run on the scheduler thread,
// rworker_stats on the caller's of Stats().
class ServingCore final : public RequestSink, public EngineListener {
 public:
  ServingCore(const Config& config, Timeline& timeline);
  ~ServingCore() override;

  void Start(Engine& engine, ServingOutputs outputs);
  // Ends every request with error "shutting_down" and stops the thread. Stop the engine after it.
  void Shutdown();

  // RequestSink
  void Submit(Request request) override;
  void Cancel(SequenceId id) override;
  nlohmann::json Stats() override;
  void ResetWindow() override;

  // EngineListener
  void OnPassDone(int mini_batch, std::span<const TokenUpdate> tokens) override;
  void OnPrefillDone(std::span<const SequenceId> sequences) override;
  void OnFreed(SequenceId sequence) override;
  void OnRWorkerLost(int rworker, const Status& reason) override;
  void OnFatal(const Status& reason) override;
  // Called on the engine thread once the attention has taken the R-worker in.
  void OnRWorkerJoined(int rworker, const RWorkerGrant& grant);

 private:
  enum class Stage {
    kWaiting,     // in the scheduler's queue
    kPrefilling,  // its K/V are being made
    kReady,       // may join a mini-batch
    kDecoding,    // in a mini-batch
  };
  struct Live {
    std::shared_ptr<const Request> request;
    Stage stage = Stage::kWaiting;
    int rworker = -1;
    int generated = 0;
    bool answered = false;  // RequestFinished is out; its blocks go at the next boundary
  };

  void Post(std::function<void()> work);
  void Run();
  void Pump();
  void PlanPrefill();
  void PlanPasses();
  void TakeToken(const TokenUpdate& token);  // records, publishes, ends
  bool Ends(const Live& live, int32_t token, FinishReason* reason) const;
  void Answer(Live* live, FinishReason reason, RequestError error = {});
  void Let(SequenceId id);  // Answered and computing no more: give its place back.
  void HandleRWorkerLost(int rworker, const Status& reason);
  void HandleCancel(SequenceId id);
  void HandlePrefillDone(SequenceId id);
  void EndAll(const std::string& code, const std::string& message);
  void Flush();  // publishes what has collected

  const Config& config_;
  Timeline& timeline_;
  Engine* engine_ = nullptr;
  ServingOutputs outputs_;
  Scheduler scheduler_;
  std::vector<int32_t> eos_ids_;

  // The scheduler thread's.
  std::unordered_map<SequenceId, Live> live_;
  std::unordered_set<SequenceId> prefilling_;  // whose PrefillDone is awaited
  std::vector<bool> at_boundary_;              // a mini-batch: may be planned
  std::vector<bool> told_idle_;
  std::vector<uint32_t> incarnations_;
  std::vector<std::string> addresses_;
  std::vector<TokenUpdate> tokens_out_;
  std::vector<RequestFinished> finished_out_;
  bool closed_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> inbox_;  // guarded by mutex_
  bool stop_ = false;                         // guarded by mutex_
  SchedulerStats stats_;                      // guarded by mutex_: as of the last plan
  uint64_t window_output_tokens_ = 0;         // guarded by mutex_
  std::thread thread_;
};

SchedulerOptions MakeSchedulerOptions(const Config& config);
SessionOptions MakeSessionOptions(const Config& config);
EngineOptions MakeEngineOptions(const Config& config);
ServerInfo MakeServerInfo(const Config& config, std::string version);

}  // namespace fastdecode
