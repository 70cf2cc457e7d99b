#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/base/clock.h"

namespace fastdecode {
namespace {

constexpr int kWarmUpRequests = 4;
constexpr int kWarmUpPromptTokens = 8;
constexpr int kWarmUpOutputTokens = 8;
constexpr int64_t kProgressNs = 200'000'000;
constexpr int kPollMs = 100;
constexpr int64_t kCancelNs = 10'000'000'000;

float Milliseconds(int64_t ns) { return static_cast<float>(static_cast<double>(ns) / 1e6); }
double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

Status Driver::WarmUp(const Workload& workload, uint64_t seed) {
  Workload warm_up;
  warm_up.in_flight = kWarmUpRequests;
  for (const BenchRequest& request : workload.requests) {
    if (warm_up.requests.size() == kWarmUpRequests) break;
    warm_up.requests.push_back({0, std::min(request.prompt_tokens, kWarmUpPromptTokens),
                                std::min(request.output_tokens, kWarmUpOutputTokens)});
  }
  const Measured measured = Run(warm_up, ~seed, /*show_progress=*/false);
  if (!measured.lost.ok()) return measured.lost;
  if (measured.failed > 0 && stop_.load() == 0) {
    return Unavailable("warm-up requests failed: " + measured.first_failure);
  }
  return OkStatus();
}

Measured Driver::Run(const Workload& workload, uint64_t seed, bool show_progress, const MeasuredPart& part) {
  measured_ = {};
  next_ = 0;
  window_ = Window::kBefore;
  start_ns_ = NowNs();
  const size_t total = workload.requests.size();
  const auto cut = [&] { return part.to < 1 && window_ == Window::kClosed; };
  Status status = MoveWindow(total, part);
  while (status.ok() && stop_.load() == 0 && !cut() && (next_ < total || !open_.empty())) {
    status = Step(workload, seed);
    if (status.ok()) status = MoveWindow(total, part);
    if (show_progress) ShowProgress(total, false);
  }
  if (show_progress) ShowProgress(total, true);
  if (status.ok() && cut()) {
    measured_.requests = static_cast<int64_t>(next_ - open_.size());
    Measured measured = std::exchange(measured_, {});
    CancelOpen();
    open_.clear();
    return measured;
  }
  if (status.ok() && stop_.load() != 0) CancelOpen();
  if (status.ok() && window_ == Window::kOpen) status = CloseWindow();
  if (window_ == Window::kBefore && status.ok()) Fail("no_window", "what was to be measured never began");
  for (; !open_.empty(); open_.erase(open_.begin())) Fail("unanswered", status.message());
  for (; next_ < total; ++next_) Fail("not_sent", status.message());
  measured_.requests = static_cast<int64_t>(total);
  measured_.lost = std::move(status);
  return std::exchange(measured_, {});
}

Status Driver::OpenWindow() {
  window_ = Window::kOpen;
  measured_.output_tokens = 0;
  measured_.itl_ms.clear();
  for (const auto& [id, open] : open_) measured_.cached_before += open.prompt_tokens + open.received;
  measured_.cached_before /= std::max<double>(1, static_cast<double>(open_.size()));
  const Status status = client_.Stats(/*reset=*/true).status();
  start_ns_ = NowNs();
  return status;
}

Status Driver::CloseWindow() {
  window_ = Window::kClosed;
  measured_.wall_s = Seconds(NowNs() - start_ns_);
  Result<nlohmann::json> stats = client_.Stats(/*reset=*/false);
  if (stats.ok()) measured_.server = std::move(*stats);
  return stats.status();
}

Status Driver::MoveWindow(size_t total, const MeasuredPart& part) {
  if (!part.decode_only) {
    const auto ended = static_cast<double>(next_ - open_.size()), all = static_cast<double>(total);
    if (window_ == Window::kBefore && ended >= part.from * all) FD_RETURN_IF_ERROR(OpenWindow());
    return window_ == Window::kOpen && ended >= part.to * all ? CloseWindow() : OkStatus();
  }
  if (window_ == Window::kOpen && open_.size() < total) return CloseWindow();
  if (window_ != Window::kBefore || open_.size() < total) return OkStatus();
  const bool all = std::all_of(open_.begin(), open_.end(), [](const auto& entry) { return entry.second.received > 0; });
  return all ? OpenWindow() : OkStatus();
}

Status Driver::Step(const Workload& workload, uint64_t seed) {
  FD_RETURN_IF_ERROR(SubmitDue(workload, seed));
  int wait_ms = kPollMs;
  if (workload.in_flight == 0 && next_ < workload.requests.size()) {
    const double until_s = workload.requests[next_].arrival_s - Seconds(NowNs() - start_ns_);
    wait_ms = std::clamp(static_cast<int>(until_s * 1000), 0, kPollMs);
  }
  Result<ServerMessage> message = client_.Receive(wait_ms);
  if (!message.ok()) {
    return message.status().code() == StatusCode::kWouldBlock ? OkStatus() : message.status();
  }
  if (const auto* tokens = std::get_if<TokensMessage>(&*message)) Take(*tokens);
  if (const auto* finished = std::get_if<FinishedMessage>(&*message)) Take(*finished);
  return OkStatus();
}

Status Driver::SubmitDue(const Workload& workload, uint64_t seed) {
  while (next_ < workload.requests.size()) {
    const BenchRequest& request = workload.requests[next_];
    const bool due = workload.in_flight > 0 ? open_.size() < static_cast<size_t>(workload.in_flight)
                                            : Seconds(NowNs() - start_ns_) >= request.arrival_s;
    if (!due) break;
    FD_RETURN_IF_ERROR(Submit(next_, request, seed));
    ++next_;
  }
  return OkStatus();
}

Status Driver::Submit(size_t index, const BenchRequest& request, uint64_t seed) {
  SubmitMessage submit;
  submit.id = index;
  submit.prompt = RandomPrompt(seed, index, request.prompt_tokens, client_.info().vocab_size);
  submit.max_tokens = request.output_tokens;
  submit.ignore_eos = true;
  submit.seed = seed;
  open_[index] = {.submitted_ns = NowNs(), .prompt_tokens = request.prompt_tokens, .expected = request.output_tokens};
  return client_.Submit(submit);
}

void Driver::Take(const TokensMessage& message) {
  const int64_t now_ns = NowNs();
  for (const RequestId id : message.ids) {
    const auto found = open_.find(id);
    if (found == open_.end()) continue;
    Open& open = found->second;
    if (open.received++ == 0) {
      measured_.ttft_ms.push_back(Milliseconds(now_ns - open.submitted_ns));
    } else if (window_ == Window::kOpen) {
      measured_.itl_ms.push_back(Milliseconds(now_ns - open.last_token_ns));
    }
    open.last_token_ns = now_ns;
    if (window_ == Window::kOpen) ++measured_.output_tokens;
  }
}

void Driver::Take(const FinishedMessage& message) {
  const auto found = open_.find(message.id);
  if (found == open_.end()) return;
  const Open open = found->second;
  open_.erase(found);
  const auto answered = static_cast<int64_t>(message.token_ids.size());
  if (message.finish_reason == "error") return Fail(message.error_code, message.error_message);
  if (message.finish_reason == "cancelled") return Fail("cancelled", "cancelled");
  if (answered != open.expected || open.received != open.expected) {
    return Fail("wrong_length", "request " + std::to_string(message.id) + ": asked for " +
                                    std::to_string(open.expected) + " tokens, " + std::to_string(open.received) +
                                    " were streamed and " + std::to_string(answered) + " were in the result");
  }
  measured_.prompt_tokens += open.prompt_tokens;
}

void Driver::Fail(const std::string& code, const std::string& message) {
  if (measured_.failed++ == 0) measured_.first_failure = code + ": " + message;
  ++measured_.failures[code];
}

void Driver::CancelOpen() {
  for (const auto& [id, open] : open_) {
    if (!client_.Cancel(id).ok()) return;
  }
  const int64_t deadline_ns = NowNs() + kCancelNs;
  while (!open_.empty() && NowNs() < deadline_ns) {
    Result<ServerMessage> message = client_.Receive(kPollMs);
    if (!message.ok() && message.status().code() != StatusCode::kWouldBlock) return;
    if (!message.ok()) continue;
    if (const auto* finished = std::get_if<FinishedMessage>(&*message)) Take(*finished);
  }
}

void Driver::ShowProgress(size_t total, bool last) {
  const int64_t now_ns = NowNs();
  if (!last && now_ns < next_progress_ns_) return;
  next_progress_ns_ = now_ns + kProgressNs;
  const double elapsed_s = std::max(1e-9, Seconds(now_ns - start_ns_));
  std::fprintf(stderr, "\r\033[K%zu of %zu requests, %zu in flight, %lld tokens, %.0f tokens/s%s", next_ - open_.size(),
               total, open_.size(), static_cast<long long>(measured_.output_tokens),
               static_cast<double>(measured_.output_tokens) / elapsed_s, last ? "\r\033[K" : "");
  std::fflush(stderr);
}

}  // namespace fastdecode
