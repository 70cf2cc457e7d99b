#include "sworker/server/api_server.h"

#include <sodium.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/api/api_codec.h"
#include "common/api/curve_keys.h"
#include "common/api/field_reader.h"
#include "common/api/zmq_handles.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/logging.h"
#include "common/config/address.h"
#include "sworker/server/api_gate.h"
#include "sworker/server/api_sessions.h"
#include "sworker/server/validate.h"

namespace fastdecode {
namespace {

constexpr int kSendQueueMessages = 4096;    // A client that is this far behind is lagging.
constexpr int kReceiveQueueMessages = 256;  // Beyond it, TCP holds the client back.
constexpr int kReceivesPerRound = 256;
constexpr int kFlushMs = 2000;

// The request as the core knows it.
Request ToRequest(SubmitMessage& submit) {
  Request request;
  request.prompt = std::move(submit.prompt);
  request.sampling.temperature = static_cast<float>(submit.temperature);
  request.sampling.top_k = static_cast<int>(submit.top_k);
  request.sampling.top_p = static_cast<float>(submit.top_p);
  request.sampling.max_tokens = static_cast<int>(std::min<int64_t>(submit.max_tokens, std::numeric_limits<int>::max()));
  request.sampling.stop_ids = std::move(submit.stop_ids);
  request.sampling.ignore_eos = submit.ignore_eos;
  request.sampling.logprobs = submit.logprobs;
  return request;
}

FinishedMessage Refusal(RequestId id, RequestError error) {
  FinishedMessage message;
  message.id = id;
  message.finish_reason = FinishReasonName(FinishReason::kError);
  message.error_code = std::move(error.code);
  message.error_message = std::move(error.message);
  return message;
}

}  // namespace

class ApiServer::Impl {
 public:
  Impl(const ApiServerOptions& options, const ModelConfig& model, RequestSink& sink)
      : options_(options), model_(model), sink_(sink) {}

  Status Open(std::span<const uint8_t, 32> secret);
  void Run();
  void Wake();

  std::string endpoint_;
  std::atomic<bool> accepting_{true};
  std::atomic<bool> stop_{false};
  std::thread thread_;

  std::mutex mutex_;  // guards the two below
  std::vector<TokenUpdate> tokens_;
  std::vector<RequestFinished> finished_;

 private:
  enum class Sent { kYes, kFull, kGone };

  void Round();
  void ReceiveAll();
  void Receive(ZmqMessage& routing_id, ZmqMessage& payload);
  void Refuse(const std::string& routing_id, const std::string& who, ErrorMessage error);
  void On(ApiClient& client, HelloMessage& message);
  void On(ApiClient& client, SubmitMessage& message);
  void On(ApiClient& client, CancelMessage& message);
  void On(ApiClient& client, StatsMessage& message);
  void DispatchPublished();
  void Finish(const RequestFinished& finished);
  void SendTokens();
  void Heartbeat();
  void EndOpenRequests();

  template <typename Message>
  void Tell(ApiClient& client, const Message& message);
  Sent SendBytes(const std::string& routing_id);
  void CancelAll(ApiClient& client, const std::string& why);

  const ApiServerOptions options_;
  const ModelConfig model_;
  RequestSink& sink_;
  ZmqContext context_;
  ZmqSocket router_;
  std::unique_ptr<ApiGate> gate_;
  Fd wake_;
  std::atomic<bool> awake_{false};  // A wake-up is on its way.
  ApiSessions sessions_;
  std::vector<uint8_t> buffer_;  // of the message that is being sent
  std::vector<TokenUpdate> taken_tokens_;
  std::vector<RequestFinished> taken_finished_;
  std::vector<ApiClient*> with_tokens_;
  int64_t next_heartbeat_ns_ = 0;
};

Status ApiServer::Impl::Open(std::span<const uint8_t, 32> secret) {
  FD_ASSIGN_OR_RETURN(HostPort address, ParseTcpUrl(options_.listen));
  const bool v6 = address.host.find(':') != std::string::npos;
  if (address.host == "localhost") address.host = "127.0.0.1";  // ZeroMQ binds to addresses only.
  const CurveKeys keys = DeriveCurveKeys(secret);
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  context_.reset(zmq_ctx_new());
  if (!wake_.valid() || !context_) return Internal("the API has no file descriptor left");
  router_.reset(zmq_socket(context_.get(), ZMQ_ROUTER));
  if (!router_) return Internal(std::string("no ZeroMQ socket: ") + zmq_strerror(zmq_errno()));
  void* router = router_.get();
  SetZmqOption(router, ZMQ_ROUTER_MANDATORY, 1);
  SetZmqOption(router, ZMQ_MAXMSGSIZE, kApiMaxMessageBytes);
  SetZmqOption(router, ZMQ_SNDHWM, kSendQueueMessages);
  SetZmqOption(router, ZMQ_RCVHWM, kReceiveQueueMessages);
  SetZmqOption(router, ZMQ_LINGER, kFlushMs);
  SetZmqOption(router, ZMQ_HANDSHAKE_IVL, kApiHandshakeMs);
  SetZmqOption(router, ZMQ_HEARTBEAT_IVL, kApiHeartbeatMs);
  SetZmqOption(router, ZMQ_HEARTBEAT_TIMEOUT, kApiSilenceMs);
  SetZmqOption(router, ZMQ_IPV6, v6 ? 1 : 0);
  SetZmqOption(router, ZMQ_CURVE_SERVER, 1);
  SetZmqOption(router, ZMQ_CURVE_SECRETKEY, std::span<const uint8_t>(keys.server.secret_key));
  CHECK_EQ(zmq_setsockopt(router, ZMQ_ZAP_DOMAIN, "fastdecode", 10), 0);  // Without a gate nobody gets in.
  FD_ASSIGN_OR_RETURN(gate_, ApiGate::Open(context_.get(), router, keys.client.public_key));
  if (zmq_bind(router, ("tcp://" + address.ToString()).c_str()) != 0) {
    return Unavailable("the API can't listen on " + options_.listen + ": " + zmq_strerror(zmq_errno()) +
                       "; choose another sworker.listen, or stop what holds it");
  }
  char endpoint[256];
  size_t size = sizeof(endpoint);
  CHECK_EQ(zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
  endpoint_ = endpoint;
  return OkStatus();
}

void ApiServer::Impl::Wake() {
  if (awake_.exchange(true)) return;
  const uint64_t one = 1;
  CHECK_EQ(write(wake_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
}

void ApiServer::Impl::Run() {
  while (!stop_.load()) Round();
  DispatchPublished();
  EndOpenRequests();
  gate_.reset();
  router_.reset();
  context_.reset();  // Waits for the flush.
}

void ApiServer::Impl::Round() {
  zmq_pollitem_t items[] = {{router_.get(), 0, ZMQ_POLLIN, 0},
                            {nullptr, wake_.get(), ZMQ_POLLIN, 0},
                            {gate_->authentication(), 0, ZMQ_POLLIN, 0},
                            {gate_->monitor(), 0, ZMQ_POLLIN, 0}};
  const int64_t wait_ns = std::max<int64_t>(0, next_heartbeat_ns_ - NowNs());
  zmq_poll(items, std::size(items), static_cast<long>(wait_ns / 1000000 + 1));
  if (items[1].revents != 0) {
    uint64_t count;
    if (read(wake_.get(), &count, sizeof(count)) > 0) awake_.store(false);
  }
  DispatchPublished();
  if (items[2].revents != 0) gate_->AnswerAuthentication();
  ReceiveAll();
  if (items[3].revents != 0) gate_->FollowConnections();
  if (NowNs() >= next_heartbeat_ns_) Heartbeat();
}

// --- what clients say ---

void ApiServer::Impl::ReceiveAll() {
  ZmqMessage routing_id;
  ZmqMessage payload;
  for (int i = 0; i < kReceivesPerRound && routing_id.Receive(router_.get(), ZMQ_DONTWAIT); ++i) {
    Receive(routing_id, payload);
  }
}

void ApiServer::Impl::Receive(ZmqMessage& routing_id, ZmqMessage& payload) {
  const std::string from = routing_id.text();
  int frames = 0;
  for (bool more = routing_id.more(); more; more = payload.more()) {
    if (!payload.Receive(router_.get(), 0)) break;
    ++frames;
  }
  gate_->Saw(payload);
  ApiClient* client = sessions_.FindClient(from);
  const std::string who = client != nullptr ? client->name : payload.Property("Peer-Address");
  if (frames != 1) return Refuse(from, who, {"bad_message", "a message is one frame", std::nullopt});
  auto decoded = DecodeClientMessage(payload.bytes());
  if (auto* malformed = std::get_if<MalformedMessage>(&decoded)) {
    if (client == nullptr || !malformed->submit_id || client->open.contains(*malformed->submit_id)) {
      return Refuse(from, who, {"bad_message", malformed->reason, malformed->submit_id});
    }
    return Tell(*client, Refusal(*malformed->submit_id, {"bad_message", malformed->reason}));
  }
  auto& message = std::get<ClientMessage>(decoded);
  if (client == nullptr) {
    const auto* hello = std::get_if<HelloMessage>(&message);
    if (hello == nullptr) return Refuse(from, who, {"no_hello", "hello must come first", std::nullopt});
    if (hello->protocol != kApiProtocol) {
      return Refuse(from, who,
                    {"bad_version",
                     "the client speaks API protocol " + std::to_string(hello->protocol) + ", this server " +
                         std::to_string(kApiProtocol),
                     std::nullopt});
    }
    if (sessions_.num_clients() >= kApiMaxClients) {
      return Refuse(from, who,
                    {"overloaded", std::to_string(kApiMaxClients) + " clients are connected already", std::nullopt});
    }
    const std::string named = hello->client.empty() ? "a client" : "'" + Printable(hello->client) + "'";
    client = &sessions_.AddClient(from, named + " at " + who);
    LOG(INFO) << "API: " << client->name << " connected";
  }
  std::visit([&](auto& content) { On(*client, content); }, message);
}

void ApiServer::Impl::Refuse(const std::string& routing_id, const std::string& who, ErrorMessage error) {
  LOG(WARNING) << "API: refused a message from " << who << ": " << error.message;
  buffer_.clear();
  Encode(error, buffer_);
  SendBytes(routing_id);  // A peer that can't take it loses no more than the reason.
}

void ApiServer::Impl::On(ApiClient& client, HelloMessage&) { Tell(client, options_.info); }

void ApiServer::Impl::On(ApiClient& client, SubmitMessage& message) {
  if (client.state != ApiClient::State::kReading) return;  // It is told that its requests were cancelled.
  if (client.open.contains(message.id)) {
    return Refuse(client.routing_id, client.name,
                  {"duplicate_id", "request " + std::to_string(message.id) + " is open already", message.id});
  }
  if (!accepting_.load()) {
    return Tell(client, Refusal(message.id, {"shutting_down", "the server is shutting down"}));
  }
  const auto prompt_tokens = static_cast<int64_t>(message.prompt.size());
  if (sessions_.Full(prompt_tokens)) {
    return Tell(client, Refusal(message.id, {"overloaded", std::to_string(sessions_.num_open()) + " requests with " +
                                                               std::to_string(sessions_.open_prompt_tokens()) +
                                                               " prompt tokens are open; try again later"}));
  }
  uint64_t seed = 0;
  if (message.seed) {
    seed = *message.seed;
  } else {
    randombytes_buf(&seed, sizeof(seed));
  }
  ApiRequest booked;
  booked.id = message.id;
  booked.stream = message.stream;
  booked.logprobs = message.logprobs;
  booked.prompt_tokens = prompt_tokens;
  booked.seed = seed;
  Request request = ToRequest(message);
  request.sampling.seed = seed;
  if (auto error = ValidateRequest(request, model_, options_.info.max_context)) {
    FinishedMessage refusal = Refusal(message.id, std::move(*error));
    refusal.prompt_tokens = prompt_tokens;
    return Tell(client, refusal);
  }
  request.id = sessions_.Open(client, std::move(booked));
  Tell(client, AcceptedMessage{message.id, seed, request.sampling.max_tokens});
  if (client.state == ApiClient::State::kReading) sink_.Submit(std::move(request));
}

void ApiServer::Impl::On(ApiClient& client, CancelMessage& message) {
  const auto open = client.open.find(message.id);
  if (open != client.open.end()) sink_.Cancel(open->second);  // Not open: it has just finished.
}

void ApiServer::Impl::On(ApiClient& client, StatsMessage& message) {
  StatsReply reply{sink_.Stats()};
  reply.stats["api"] = {{"clients", sessions_.num_clients()},
                        {"open_requests", sessions_.num_open()},
                        {"open_prompt_tokens", sessions_.open_prompt_tokens()}};
  if (message.reset) sink_.ResetWindow();
  Tell(client, reply);
}

// --- what the core says ---

void ApiServer::Impl::DispatchPublished() {
  {
    const std::lock_guard lock(mutex_);
    taken_tokens_.swap(tokens_);
    taken_finished_.swap(finished_);
  }
  for (const TokenUpdate& update : taken_tokens_) {
    ApiClient* client = sessions_.AddToken(update);
    if (client != nullptr && client->tokens.ids.size() == 1) with_tokens_.push_back(client);
  }
  taken_tokens_.clear();
  SendTokens();
  for (const RequestFinished& finished : taken_finished_) Finish(finished);
  taken_finished_.clear();
}

void ApiServer::Impl::SendTokens() {
  for (ApiClient* client : with_tokens_) {
    Tell(*client, client->tokens);
    client->tokens.ids.clear();
    client->tokens.tokens.clear();
    client->tokens.logprobs.clear();
  }
  with_tokens_.clear();
}

void ApiServer::Impl::Finish(const RequestFinished& finished) {
  const ApiRequest* request = sessions_.Find(finished.id);
  if (request == nullptr) return;  // Its client went away.
  ApiClient& client = *request->client;
  Tell(client, sessions_.Close(finished.id, finished));
}

void ApiServer::Impl::EndOpenRequests() {
  for (const SequenceId sequence : sessions_.OpenSequences()) {
    Finish({sequence, FinishReason::kError, {"shutting_down", "the server shut down before the request was done"}});
  }
}

// --- sending ---

void ApiServer::Impl::Heartbeat() {
  next_heartbeat_ns_ = NowNs() + int64_t{kApiHeartbeatMs} * 1000000;
  sessions_.ForEachClient([&](ApiClient& client) {
    if (client.state != ApiClient::State::kLagging) return Tell(client, HeartbeatMessage{});
    buffer_.clear();
    Encode(ErrorMessage{"slow_client", "the client did not read its messages: its requests were cancelled", {}},
           buffer_);
    const Sent sent = SendBytes(client.routing_id);
    if (sent == Sent::kYes) client.state = ApiClient::State::kReading;
    if (sent == Sent::kGone) client.state = ApiClient::State::kGone;
  });
  sessions_.Sweep();
}

template <typename Message>
void ApiServer::Impl::Tell(ApiClient& client, const Message& message) {
  if (client.state != ApiClient::State::kReading) return;
  buffer_.clear();
  Encode(message, buffer_);
  const Sent sent = SendBytes(client.routing_id);
  if (sent == Sent::kYes) return;
  client.state = sent == Sent::kFull ? ApiClient::State::kLagging : ApiClient::State::kGone;
  CancelAll(client, sent == Sent::kFull ? "does not read its messages" : "is gone");
}

ApiServer::Impl::Sent ApiServer::Impl::SendBytes(const std::string& routing_id) {
  void* router = router_.get();
  if (zmq_send(router, routing_id.data(), routing_id.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
    return zmq_errno() == EAGAIN ? Sent::kFull : Sent::kGone;
  }
  return zmq_send(router, buffer_.data(), buffer_.size(), ZMQ_DONTWAIT) < 0 ? Sent::kGone : Sent::kYes;
}

void ApiServer::Impl::CancelAll(ApiClient& client, const std::string& why) {
  const std::vector<SequenceId> sequences = sessions_.Abandon(client);
  if (sequences.empty()) return;
  LOG(INFO) << "API: " << client.name << " " << why << "; " << sequences.size() << " requests of it cancelled";
  for (const SequenceId sequence : sequences) sink_.Cancel(sequence);
}

// --- the public face ---

Result<std::unique_ptr<ApiServer>> ApiServer::Start(const ApiServerOptions& options,
                                                    std::span<const uint8_t, 32> secret, const ModelConfig& model,
                                                    RequestSink& sink) {
  auto impl = std::make_unique<Impl>(options, model, sink);
  FD_RETURN_IF_ERROR(impl->Open(secret));
  impl->thread_ = std::thread([raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiServer::~ApiServer() { Stop(); }

const std::string& ApiServer::endpoint() const { return impl_->endpoint_; }

void ApiServer::Publish(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
  {
    const std::lock_guard lock(impl_->mutex_);
    impl_->tokens_.insert(impl_->tokens_.end(), tokens.begin(), tokens.end());
    impl_->finished_.insert(impl_->finished_.end(), finished.begin(), finished.end());
  }
  impl_->Wake();
}

void ApiServer::StopAccepting() { impl_->accepting_.store(false); }

void ApiServer::Stop() {
  if (!impl_->thread_.joinable()) return;
  impl_->stop_.store(true);
  impl_->Wake();
  impl_->thread_.join();
}

}  // namespace fastdecode
