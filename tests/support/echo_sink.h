// A core without a model: answers a prompt with its own ids, over and over. For
// tests of the API and its clients.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "sworker/server/api_server.h"
#include "sworker/server/request_sink.h"

namespace fastdecode {

class EchoSink final : public RequestSink {
 public:
  // A pass is one token for every running sequence.
  explicit EchoSink(std::chrono::microseconds pass) : pass_(pass) {}
  ~EchoSink() override { Stop(); }

  void SetPass(std::chrono::microseconds pass) {
    const std::lock_guard lock(mutex_);
    pass_ = pass;
  }
  void StartPublishing(ApiServer& server) {
    thread_ = std::thread([this, &server] { Run(server); });
  }
  // Before the server goes. What runs stays unanswered.
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void Submit(Request request) override {
    const std::lock_guard lock(mutex_);
    ++submitted_;
    const SequenceId id = request.id;
    running_[id].request = std::move(request);
    wake_.notify_all();
  }
  void Cancel(SequenceId id) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = running_.find(id); found != running_.end()) found->second.cancelled = true;
    ++cancelled_;
  }
  nlohmann::json Stats() override {
    const std::lock_guard lock(mutex_);
    return {{"submitted", submitted_},
            {"cancelled", cancelled_},
            {"running", running_.size()},
            {"window", {{"steps", window_steps_}}}};
  }
  void ResetWindow() override {
    const std::lock_guard lock(mutex_);
    window_steps_ = 0;
  }

 private:
  struct Running {
    Request request;
    int produced = 0;
    bool cancelled = false;
  };

  void Run(ApiServer& server) {
    std::vector<TokenUpdate> tokens;
    std::vector<RequestFinished> finished;
    std::unique_lock lock(mutex_);
    while (!stop_) {
      wake_.wait(lock, [&] { return stop_ || !running_.empty(); });
      tokens.clear();
      finished.clear();
      ++window_steps_;
      for (auto entry = running_.begin(); entry != running_.end();) {
        entry = Advance(entry->second, tokens, finished) ? running_.erase(entry) : std::next(entry);
      }
      server.Publish(tokens, finished);
      const std::chrono::microseconds pass = pass_;
      lock.unlock();
      std::this_thread::sleep_for(pass);
      lock.lock();
    }
  }

  // True: it has finished.
  static bool Advance(Running& running, std::vector<TokenUpdate>& tokens, std::vector<RequestFinished>& finished) {
    const Request& request = running.request;
    if (running.cancelled) {
      finished.push_back({request.id, FinishReason::kCancelled, {}});
      return true;
    }
    const int32_t token = request.prompt[static_cast<size_t>(running.produced) % request.prompt.size()];
    ++running.produced;
    tokens.push_back({request.id, token, -0.5f});
    const auto& stops = request.sampling.stop_ids;
    const bool stopped = std::find(stops.begin(), stops.end(), token) != stops.end();
    if (!stopped && running.produced < request.sampling.max_tokens) return false;
    finished.push_back({request.id, stopped ? FinishReason::kStop : FinishReason::kLength, {}});
    return true;
  }

  std::mutex mutex_;  // guards all below but the thread
  std::chrono::microseconds pass_;
  std::condition_variable wake_;
  std::map<SequenceId, Running> running_;
  bool stop_ = false;
  int64_t submitted_ = 0;
  int64_t cancelled_ = 0;
  int64_t window_steps_ = 0;
  std::thread thread_;
};

}  // namespace fastdecode
