#include "sworker/engine/engine.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "common/base/logging.h"

namespace fastdecode {

Engine::Engine(const EngineOptions& options, const Model& model, DeviceRuntime& device, AttentionBackend& attention,
               Timeline& timeline, EngineListener& listener)
    : options_(options),
      attention_(attention),
      timeline_(timeline),
      listener_(listener),
      stream_(device.MakeStream()),
      context_{model, device, *stream_, attention, completions_},
      prefill_buffers_(device, options.max_prefill_tokens, options.max_prefill_prompts),
      planned_(static_cast<size_t>(options.mini_batches), false) {
  for (int m = 0; m < options.mini_batches; ++m)
    passes_.push_back(std::make_unique<DecodePass>(context_, m, options.max_rows));
}

Engine::~Engine() { Stop(); }

void Engine::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Engine::Stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  completions_.Wake();
  thread_.join();
  stream_->Synchronize();  // What still runs there refers to passes and slots.
}

void Engine::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(work));
  }
  completions_.Wake();
}

void Engine::Prefill(std::vector<PrefillRequest> prompts) {
  Post([this, prompts = std::move(prompts)]() mutable {
    std::vector<SequenceId> ready;
    std::vector<PrefillRequest> rest;
    for (PrefillRequest& prompt : prompts) {
      if (prompt.request->prompt.size() > 1) {
        rest.push_back(std::move(prompt));
      } else {
        Begin(prompt);
        ready.push_back(prompt.request->id);
      }
    }
    if (!rest.empty()) next_prefills_.push_back(std::move(rest));
    if (prefill_ == nullptr) StartPrefill();
    if (!ready.empty()) listener_.OnPrefillDone(ready);
  });
}

void Engine::Begin(const PrefillRequest& prompt) {
  const std::vector<int32_t>& tokens = prompt.request->prompt;
  sequences_[prompt.request->id] = {.request = prompt.request,
                                    .rworker = prompt.rworker,
                                    .position = static_cast<int64_t>(tokens.size()) - 1,
                                    .token = tokens.back()};
}

void Engine::StartPrefill() {
  if (next_prefills_.empty()) return;
  std::vector<PrefillRequest> prompts = std::move(next_prefills_.front());
  next_prefills_.pop_front();
  for (const PrefillRequest& prompt : prompts) Begin(prompt);
  prefill_ = std::make_unique<PrefillBatch>(context_, prefill_buffers_, std::move(prompts));
  UpdateIdle();
  prefill_->Advance();
}

void Engine::PromptPushed(SequenceId id) {
  if (prefill_ == nullptr) return;  // Of a batch that ended with its R-worker.
  const std::optional<size_t> index = prefill_->Pushed(id);
  if (!index.has_value()) return;
  timeline_.Prefilled(static_cast<int>(prefill_->prompts()[*index].length));
  auto it = sequences_.find(id);
  if (it != sequences_.end() && prefill_->overflowed(*index)) WarnOverflow(&it->second);
  listener_.OnPrefillDone({&id, 1});
}

void Engine::EndPrefill() {
  for (const PrefillBatch::Prompt& prompt : prefill_->prompts()) {
    if (prompt.lost) sequences_.erase(prompt.from.request->id);
  }
  prefill_.reset();
  StartPrefill();
  UpdateIdle();
}

void Engine::RunPass(int mini_batch, PassPlan plan) {
  Post([this, mini_batch, plan = std::move(plan)] { StartPass(mini_batch, plan); });
}

void Engine::NoPass(int mini_batch) {
  Post([this, mini_batch] {
    planned_[static_cast<size_t>(mini_batch)] = false;
    attention_.Idle(mini_batch);
    UpdateIdle();
  });
}

void Engine::Release(SequenceId sequence) {
  Post([this, sequence] {
    auto it = sequences_.find(sequence);
    if (it == sequences_.end()) {  // Its R-worker was lost, and its blocks with it.
      listener_.OnFreed(sequence);
      return;
    }
    attention_.Free(it->second.rworker, sequence);
    sequences_.erase(it);
  });
}

void Engine::Run() {
  UpdateIdle();
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    bool moved = RunCommands();
    moved = RunCompletions() || moved;
    moved = RunAttention() || moved;
    for (auto& pass : passes_) pass->Advance();
    if (!moved) Wait();
  }
}

bool Engine::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (auto& command : commands) {
    command();
    // What it lost is told before the next one runs: an R-worker's next life must not be told before the end of this
    // one.
    (void)RunAttention();
  }
  return !commands.empty();
}

bool Engine::RunCompletions() {
  completions_.Take(&ends_);
  for (const StageEnd& end : ends_) {
    const size_t index = static_cast<size_t>(end.id.index);
    switch (end.id.owner) {
      case StageId::Owner::kPass: {
        DecodePass& pass = *passes_[index];
        timeline_.StageDone(end.id.index, end.times, pass.unblocked());
        pass.StageDone();
        if (pass.state() == DecodePass::State::kDone) FinishPass(end.id.index);
        break;
      }
      case StageId::Owner::kPrefill:
        timeline_.StageDone(Timeline::kPrefill, end.times, nullptr);
        prefill_->ComputeDone();
        break;
      case StageId::Owner::kPush:
        timeline_.StageDone(Timeline::kPrefill, end.times, nullptr);
        prefill_->PushDone(end.id.index);
        break;
    }
  }
  if (ends_.empty()) return false;
  if (Status status = stream_->TakeError(); !status.ok()) listener_.OnFatal(status);
  return true;
}

bool Engine::RunAttention() {
  bool moved = false;
  while (std::optional<AttentionEvent> event = attention_.Poll()) {
    Handle(*event);
    moved = true;
  }
  if (prefill_ != nullptr) {
    prefill_->Advance();
    if (prefill_->done()) {
      EndPrefill();
      moved = true;
    }
  }
  return moved;
}

void Engine::Handle(AttentionEvent& event) {
  switch (event.kind) {
    case AttentionEvent::Kind::kAttended:
      passes_[static_cast<size_t>(event.mini_batch)]->Attended(event);
      break;
    case AttentionEvent::Kind::kPrefillDone:
      PromptPushed(event.sequence);
      break;
    case AttentionEvent::Kind::kFreed:
      listener_.OnFreed(event.sequence);
      break;
    case AttentionEvent::Kind::kLost:
      timeline_.RWorkerLost(event.rworker);
      if (prefill_ != nullptr) prefill_->Lost(event.rworker);
      std::erase_if(sequences_, [&](const auto& entry) { return entry.second.rworker == event.rworker; });
      listener_.OnRWorkerLost(event.rworker, event.reason);
      break;
  }
}

void Engine::WarnOverflow(EngineSequence* sequence) {
  if (std::exchange(sequence->overflow_warned, true)) return;
  timeline_.F16Overflow();
  LOG(WARNING) << "sequence " << sequence->request->id
               << ": a Q, K or V element is beyond f16's range (65504) and was saturated; its tokens may differ from "
                  "the model's own";
}

void Engine::StartPass(int mini_batch, const PassPlan& plan) {
  std::vector<DecodePass::Row> rows;
  rows.reserve(plan.rows.size());
  for (const PassRow& row : plan.rows) {
    auto it = sequences_.find(row.sequence);
    if (it == sequences_.end()) continue;  // Its R-worker was lost while the plan was made.
    const EngineSequence& sequence = it->second;
    rows.push_back({.sequence = row.sequence,
                    .rworker = sequence.rworker,
                    .position = sequence.position,
                    .token = sequence.token,
                    .sampled = sequence.sampled,
                    .request = sequence.request});
  }
  planned_[static_cast<size_t>(mini_batch)] = true;
  UpdateIdle();
  if (rows.empty()) {
    listener_.OnPassDone(mini_batch, {});
    return;
  }
  passes_[static_cast<size_t>(mini_batch)]->Start(++next_step_, std::move(rows));
}

void Engine::FinishPass(int mini_batch) {
  DecodePass& pass = *passes_[static_cast<size_t>(mini_batch)];
  updates_.clear();
  for (size_t i = 0; i < pass.rows().size(); ++i) {
    auto it = sequences_.find(pass.rows()[i].sequence);
    if (pass.lost(i) || it == sequences_.end()) continue;
    EngineSequence& sequence = it->second;
    ++sequence.position;
    ++sequence.sampled;
    sequence.token = pass.token(i);
    if (pass.overflowed(i)) WarnOverflow(&sequence);
    updates_.push_back({.id = it->first, .token = sequence.token, .logprob = pass.logprob(i)});
  }
  timeline_.PassDone(mini_batch, pass.begin_ns(), NowNs(), static_cast<int>(pass.rows().size()), attention_.workload());
  timeline_.Totals(attention_.wire_bytes(), attention_.compute_ns());
  pass.Reset();
  listener_.OnPassDone(mini_batch, updates_);
}

void Engine::UpdateIdle() {
  const bool idle = prefill_ == nullptr && std::none_of(planned_.begin(), planned_.end(), [](bool p) { return p; });
  timeline_.SetIdle(idle, NowNs());
}

void Engine::Wait() {
  wait_fds_.clear();
  wait_fds_.push_back(completions_.wake_fd());
  if (!attention_.PrepareWait(&wait_fds_)) return;
  poll_fds_.clear();
  for (int fd : wait_fds_) poll_fds_.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const int ready = ::poll(poll_fds_.data(), static_cast<nfds_t>(poll_fds_.size()), -1);
  PCHECK(ready >= 0 || errno == EINTR);
  if (ready > 0 && (poll_fds_[0].revents & POLLIN) != 0) completions_.ClearWake();
}

}  // namespace fastdecode
