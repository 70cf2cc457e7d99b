#include "plan/measure/serving_probe.h"

#include <chrono>
#include <condition_variable>
#include <future>
#include <map>

#include "common/base/clock.h"
#include "sworker/serving/serving_core.h"

namespace fastdecode::plan {
namespace {

constexpr std::chrono::minutes kTimeout{5};
constexpr std::chrono::milliseconds kLook{200};  // a signal wakes nobody here

}  // namespace

// Counts what the core publishes. Guarded by mutex: its callbacks come on the core's thread.
struct ServingProbe::State {
  State(Lab& lab)
      : lab(lab),
        timeline(lab.config().pipeline.mini_batches),
        core(lab.config(), timeline),
        engine(MakeEngineOptions(lab.config()), lab.model(), lab.device(), lab.attention(), timeline, core) {}

  void Publish(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
    std::lock_guard lock(mutex);
    if (end_ns == 0) {
      for (const TokenUpdate& token : tokens) decoding += ++tokens_of[token.id] == 2 ? 1 : 0;
      if (begin_ns != 0) counted += tokens.size();
      // The window opens with the second token of the last (the first is prefill's, and its K and V
      // are still on their way), and closes with the first end.
      if (begin_ns == 0 && decoding == expected) {
        begin_ns = NowNs();
        received_before = received + tokens.size();
      }
      received += tokens.size();
      if (!finished.empty()) end_ns = NowNs();
    }
    done += finished.size();
    for (const RequestFinished& one : finished) {
      if (one.reason == FinishReason::kError && fault.ok()) fault = Unavailable(one.error.message);
    }
    changed.notify_all();
  }

  Lab& lab;
  Timeline timeline;
  ServingCore core;
  Engine engine;
  SequenceId next = SequenceId{1} << 40;  // beyond the lab's own

  std::mutex mutex;
  std::condition_variable changed;
  std::map<SequenceId, int> tokens_of;
  size_t expected = 0, decoding = 0, counted = 0, done = 0, received = 0, received_before = 0;
  int64_t begin_ns = 0, end_ns = 0;
  Status fault;
};

ServingProbe::ServingProbe(Lab& lab) : state_(std::make_unique<State>(lab)) {
  ServingOutputs outputs;
  outputs.publish = [this](std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
    state_->Publish(tokens, finished);
  };
  outputs.report_lost = [](int, uint32_t, const Status&) {};
  outputs.fatal = [this](const Status& reason) {
    std::lock_guard lock(state_->mutex);
    state_->fault = reason;
    state_->changed.notify_all();
  };
  state_->core.Start(state_->engine, outputs);
  state_->lab.attention().HandOver();
  state_->engine.Start();
  std::promise<void> joined;
  state_->engine.Post([this, &joined] {
    const auto rworkers = static_cast<int>(state_->lab.config().rworkers.hosts.size());
    for (int r = 0; r < rworkers; ++r) state_->core.OnRWorkerJoined(r, state_->lab.grant(r));
    joined.set_value();
  });
  joined.get_future().wait();  // the core hears of them before of any request
}

ServingProbe::~ServingProbe() {
  state_->core.Shutdown();
  state_->engine.Stop();
  state_->lab.attention().HandOver();
}

Result<LiveRun> ServingProbe::Run(int batch, int prompt, int output) {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    state.tokens_of.clear();
    state.expected = static_cast<size_t>(batch);
    state.decoding = state.counted = state.done = state.received = state.received_before = 0;
    state.begin_ns = state.end_ns = 0;
  }
  for (int i = 0; i < batch; ++i) {
    Request request;
    request.id = state.next++;
    request.prompt.assign(static_cast<size_t>(prompt), 1);
    request.sampling.max_tokens = output;
    request.sampling.ignore_eos = true;
    state.core.Submit(std::move(request));
  }
  std::unique_lock lock(state.mutex);
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  const auto ended = [&] { return !state.fault.ok() || state.done == static_cast<size_t>(batch); };
  while (!state.changed.wait_for(lock, kLook, ended)) {
    if (state.lab.stopped()) return Status(StatusCode::kCancelled, "interrupted");
    if (std::chrono::steady_clock::now() > deadline) return Unavailable("a live run did not end within minutes");
  }
  if (!state.fault.ok()) return state.fault;
  if (state.begin_ns == 0 || state.counted == 0)
    return Unavailable("the requests of a live run never decoded together");
  LiveRun run;
  const double seconds = static_cast<double>(state.end_ns - state.begin_ns) / 1e9;
  run.step_s = seconds * batch / static_cast<double>(state.counted);
  const double tokens_before = static_cast<double>(state.received_before) / batch;
  run.tokens = prompt + tokens_before + static_cast<double>(state.counted) / batch / 2;
  return run;
}

}  // namespace fastdecode::plan
