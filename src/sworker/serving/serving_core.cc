#include "sworker/serving/serving_core.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"

namespace fastdecode {

ServingCore::ServingCore(const Config& config, Timeline& timeline)
    : config_(config),
      timeline_(timeline),
      scheduler_(MakeSchedulerOptions(config)),
      at_boundary_(static_cast<size_t>(config.pipeline.mini_batches), true),
      told_idle_(at_boundary_.size(), true),
      incarnations_(config.rworkers.hosts.size(), 0) {
  for (int64_t id : config.model_config.eos_token_ids) eos_ids_.push_back(static_cast<int32_t>(id));
  for (const RWorkerHost& host : config.rworkers.hosts) addresses_.push_back(host.address);
}

ServingCore::~ServingCore() { Shutdown(); }

void ServingCore::Start(Engine& engine, ServingOutputs outputs) {
  engine_ = &engine;
  outputs_ = std::move(outputs);
  thread_ = std::thread([this] { Run(); });
}

void ServingCore::Shutdown() {
  if (!thread_.joinable()) return;
  Post([this] { EndAll("shutting_down", "the server is shutting down"); });
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ServingCore::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void ServingCore::Run() {
  std::vector<std::function<void()>> work;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !inbox_.empty(); });
      if (inbox_.empty()) return;
      work.clear();
      work.swap(inbox_);
    }
    for (auto& item : work) item();
    Pump();
    Flush();
  }
}

void ServingCore::Pump() {
  if (!closed_) {
    PlanPrefill();
    PlanPasses();
  }
  SchedulerStats stats = scheduler_.stats();
  std::lock_guard lock(mutex_);
  stats_ = std::move(stats);
}

void ServingCore::PlanPrefill() {
  if (!prefilling_.empty()) return;
  const std::vector<PrefillItem> items = scheduler_.PlanPrefill();
  if (items.empty()) return;
  std::vector<PrefillRequest> prompts;
  for (const PrefillItem& item : items) {
    Live& live = live_.at(item.sequence);
    live.stage = Stage::kPrefilling;
    live.rworker = item.rworker;
    prefilling_.insert(item.sequence);
    prompts.push_back({.request = live.request, .rworker = item.rworker});
  }
  engine_->Prefill(std::move(prompts));
}

void ServingCore::PlanPasses() {
  for (size_t m = 0; m < at_boundary_.size(); ++m) {
    if (!at_boundary_[m]) continue;
    PassPlan plan = scheduler_.PlanPass(static_cast<int>(m));
    if (plan.rows.empty()) {
      if (!told_idle_[m]) engine_->NoPass(static_cast<int>(m));
      told_idle_[m] = true;
      continue;
    }
    for (const PassRow& row : plan.rows) live_.at(row.sequence).stage = Stage::kDecoding;
    at_boundary_[m] = false;
    told_idle_[m] = false;
    engine_->RunPass(static_cast<int>(m), std::move(plan));
  }
}

void ServingCore::Submit(Request request) {
  Post([this, request = std::make_shared<const Request>(std::move(request))] {
    Live live{.request = request};
    if (closed_) {
      Answer(&live, FinishReason::kError, {"shutting_down", "the server is shutting down"});
      return;
    }
    const Status status =
        scheduler_.Submit(request->id, static_cast<int>(request->prompt.size()), request->sampling.max_tokens);
    if (!status.ok()) {
      const bool never = status.code() == StatusCode::kResourceExhausted;
      Answer(&live, FinishReason::kError, {never ? "never_fits" : "unavailable", status.message()});
      return;
    }
    live_.emplace(request->id, std::move(live));
  });
}

void ServingCore::Cancel(SequenceId id) {
  Post([this, id] { HandleCancel(id); });
}

void ServingCore::HandleCancel(SequenceId id) {
  auto it = live_.find(id);
  if (it == live_.end() || it->second.answered) return;
  Answer(&it->second, FinishReason::kCancelled);
  // What is being computed is let go at its next boundary.
  if (it->second.stage == Stage::kWaiting || it->second.stage == Stage::kReady) Let(id);
}

void ServingCore::OnPassDone(int mini_batch, std::span<const TokenUpdate> tokens) {
  Post([this, mini_batch, tokens = std::vector<TokenUpdate>(tokens.begin(), tokens.end())] {
    at_boundary_[static_cast<size_t>(mini_batch)] = true;
    for (const TokenUpdate& token : tokens) TakeToken(token);
  });
}

void ServingCore::TakeToken(const TokenUpdate& token) {
  auto it = live_.find(token.id);
  if (it == live_.end()) return;  // lost
  Live& live = it->second;
  if (!live.answered) {
    ++live.generated;
    tokens_out_.push_back(token);
    FinishReason reason;
    if (Ends(live, token.token, &reason)) Answer(&live, reason);
  }
  if (live.answered) Let(token.id);
}

bool ServingCore::Ends(const Live& live, int32_t token, FinishReason* reason) const {
  const SamplingParams& sampling = live.request->sampling;
  auto among = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (among(sampling.stop_ids) || (!sampling.ignore_eos && among(eos_ids_))) {
    *reason = FinishReason::kStop;
    return true;
  }
  *reason = FinishReason::kLength;
  return live.generated >= sampling.max_tokens;
}

void ServingCore::Answer(Live* live, FinishReason reason, RequestError error) {
  live->answered = true;
  finished_out_.push_back({.id = live->request->id, .reason = reason, .error = std::move(error)});
}

void ServingCore::Let(SequenceId id) {
  auto it = live_.find(id);
  const int rworker = it->second.rworker;
  live_.erase(it);
  scheduler_.Finished(id);
  if (rworker >= 0) {
    engine_->Release(id);
  } else {
    scheduler_.BlocksFreed(id);
  }
}

void ServingCore::OnPrefillDone(std::span<const SequenceId> sequences) {
  Post([this, sequences = std::vector<SequenceId>(sequences.begin(), sequences.end())] {
    for (SequenceId id : sequences) HandlePrefillDone(id);
  });
}

void ServingCore::HandlePrefillDone(SequenceId id) {
  prefilling_.erase(id);
  auto it = live_.find(id);
  if (it == live_.end()) {  // Lost, yet taken in by the same R-worker's next life.
    engine_->Release(id);
  } else if (it->second.answered) {
    Let(id);
  } else {
    it->second.stage = Stage::kReady;
    scheduler_.PrefillDone(id);
  }
}

void ServingCore::OnFreed(SequenceId sequence) {
  Post([this, sequence] { scheduler_.BlocksFreed(sequence); });
}

void ServingCore::OnRWorkerJoined(int rworker, const RWorkerGrant& grant) {
  Post([this, rworker, grant] {
    incarnations_[static_cast<size_t>(rworker)] = grant.incarnation;
    const std::string& address = addresses_[static_cast<size_t>(rworker)];
    for (SequenceId id : scheduler_.RWorkerJoined(rworker, grant.kv_blocks)) {
      auto it = live_.find(id);
      if (it == live_.end()) continue;
      Answer(&it->second, FinishReason::kError,
             {"never_fits", "R-worker " + address + " came back with less memory, and the request fits nowhere now"});
      live_.erase(it);
    }
  });
}

void ServingCore::OnRWorkerLost(int rworker, const Status& reason) {
  Post([this, rworker, reason] { HandleRWorkerLost(rworker, reason); });
}

void ServingCore::HandleRWorkerLost(int rworker, const Status& reason) {
  const std::string& address = addresses_[static_cast<size_t>(rworker)];
  const std::vector<SequenceId> lost = scheduler_.RWorkerLost(rworker);
  for (SequenceId id : lost) {
    auto it = live_.find(id);
    if (it == live_.end()) continue;
    if (!it->second.answered)
      Answer(&it->second, FinishReason::kError,
             {"rworker_lost", "R-worker " + address + " was lost: " + reason.message()});
    live_.erase(it);
    prefilling_.erase(id);
  }
  LOG(WARNING) << "R-worker " << address << " was lost (" << reason.message() << "); " << lost.size()
               << " sequences ended with it";
  outputs_.report_lost(rworker, incarnations_[static_cast<size_t>(rworker)], reason);
}

void ServingCore::OnFatal(const Status& reason) {
  Post([this, reason] {
    if (closed_) return;
    LOG(ERROR) << "the device failed, nothing can go on: " << reason.message();
    EndAll("device_failed", reason.message());
    Flush();
    outputs_.fatal(reason);
  });
}

void ServingCore::EndAll(const std::string& code, const std::string& message) {
  closed_ = true;
  for (auto& [id, live] : live_) {
    if (!live.answered) Answer(&live, FinishReason::kError, {code, message});
  }
  live_.clear();
}

void ServingCore::Flush() {
  if (tokens_out_.empty() && finished_out_.empty()) return;
  {
    std::lock_guard lock(mutex_);
    window_output_tokens_ += tokens_out_.size();
  }
  outputs_.publish(tokens_out_, finished_out_);
  tokens_out_.clear();
  finished_out_.clear();
}

void ServingCore::ResetWindow() {
  timeline_.Reset();
  if (outputs_.plan != nullptr) outputs_.plan->Reset();
  std::lock_guard lock(mutex_);
  window_output_tokens_ = 0;
}

}  // namespace fastdecode
