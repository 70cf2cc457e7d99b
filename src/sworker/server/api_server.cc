#include "sworker/server/api_server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/logging.h"
#include "sworker/server/api_dialogue.h"
#include "sworker/server/api_router.h"

namespace fastdecode {
namespace {

constexpr int kReceivesPerRound = 256;  // Then it is the core's turn to speak.

}  // namespace

// The thread, and the queue from the core to it.
class ApiServer::Impl {
 public:
  Impl(const ApiServerOptions& options, const ModelConfig& model, RequestSink& sink, std::unique_ptr<ApiRouter> router)
      : endpoint_(router->endpoint()),
        router_(std::move(router)),
        dialogue_(*router_, options.info, model, sink),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CHECK(wake_.valid()) << "no file descriptor left";
    thread_ = std::thread([this] { Run(); });
  }

  const std::string& endpoint() const { return endpoint_; }
  void StopAccepting() { dialogue_.StopAccepting(); }
  void Publish(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished);
  void Stop();

 private:
  void Run();
  void Round();
  void TellPublished();
  void Wake();

  const std::string endpoint_;
  std::unique_ptr<ApiRouter> router_;
  ApiDialogue dialogue_;
  const Fd wake_;
  std::atomic<bool> awake_{false};  // A wake-up is on its way.
  std::atomic<bool> stop_{false};
  std::thread thread_;

  std::mutex mutex_;  // guards the two below
  std::vector<TokenUpdate> tokens_;
  std::vector<RequestFinished> finished_;

  // The API thread's: swapped with the two above, so that all keep their capacity.
  std::vector<TokenUpdate> taken_tokens_;
  std::vector<RequestFinished> taken_finished_;
  int64_t next_heartbeat_ns_ = 0;
};

void ApiServer::Impl::Publish(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    finished_.insert(finished_.end(), finished.begin(), finished.end());
  }
  Wake();
}

void ApiServer::Impl::Wake() {
  if (awake_.exchange(true)) return;
  const uint64_t one = 1;
  CHECK_EQ(write(wake_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

void ApiServer::Impl::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  Wake();
  thread_.join();
}

void ApiServer::Impl::Run() {
  while (!stop_.load()) Round();
  TellPublished();
  dialogue_.EndOpenRequests();
  router_.reset();  // Waits for the flush.
}

void ApiServer::Impl::Round() {
  if (router_->Wait(wake_.get(), (next_heartbeat_ns_ - NowNs()) / 1000000 + 1)) {
    uint64_t count;
    if (read(wake_.get(), &count, sizeof(count)) > 0) awake_.store(false);
  }
  TellPublished();
  ApiRouter::Received received;
  int left = kReceivesPerRound;
  while (left > 0 && router_->Receive(&received)) {
    dialogue_.OnMessage(received);
    --left;
  }
  if (left > 0) router_->FollowConnections();
  if (NowNs() >= next_heartbeat_ns_) {
    dialogue_.Heartbeat();
    next_heartbeat_ns_ = NowNs() + int64_t{kApiHeartbeatMs} * 1000000;
  }
}

void ApiServer::Impl::TellPublished() {
  {
    const std::lock_guard lock(mutex_);
    taken_tokens_.swap(tokens_);
    taken_finished_.swap(finished_);
  }
  dialogue_.Tell(taken_tokens_, taken_finished_);
  taken_tokens_.clear();
  taken_finished_.clear();
}

Result<std::unique_ptr<ApiServer>> ApiServer::Start(const ApiServerOptions& options,
                                                    std::span<const uint8_t, 32> secret, const ModelConfig& model,
                                                    RequestSink& sink) {
  FD_ASSIGN_OR_RETURN(std::unique_ptr<ApiRouter> router, ApiRouter::Open(options.listen, secret));
  return std::unique_ptr<ApiServer>(new ApiServer(std::make_unique<Impl>(options, model, sink, std::move(router))));
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiServer::~ApiServer() { Stop(); }

const std::string& ApiServer::endpoint() const { return impl_->endpoint(); }
void ApiServer::StopAccepting() { impl_->StopAccepting(); }
void ApiServer::Stop() { impl_->Stop(); }
void ApiServer::Publish(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
  impl_->Publish(tokens, finished);
}

}  // namespace fastdecode
