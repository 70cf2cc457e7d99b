#include "common/api/api_client.h"

#include <algorithm>
#include <utility>

#include "common/api/curve_keys.h"
#include "common/base/clock.h"
#include "common/config/address.h"

namespace fastdecode {
namespace {

constexpr char kMonitorEndpoint[] = "inproc://api-client-monitor";
constexpr int kEvents = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kAnswerMs = 5000;
constexpr int kSendQueueMessages = 1 << 17;  // More than the server lets anybody have open.

}  // namespace

Result<std::unique_ptr<ApiClient>> ApiClient::Connect(const std::string& address, std::span<const uint8_t, 32> secret,
                                                      const std::string& name) {
  const bool url = address.starts_with("tcp://");
  FD_ASSIGN_OR_RETURN(HostPort peer, url ? ParseTcpUrl(address) : ParseHostPort(address));
  std::unique_ptr<ApiClient> client(new ApiClient);
  client->address_ = "tcp://" + peer.ToString();
  client->context_.reset(zmq_ctx_new());
  if (!client->context_) return Internal("no ZeroMQ context");
  client->socket_.reset(zmq_socket(client->context_.get(), ZMQ_DEALER));
  client->monitor_.reset(zmq_socket(client->context_.get(), ZMQ_PAIR));
  if (!client->socket_ || !client->monitor_) return Internal("no ZeroMQ socket left");
  const CurveKeys keys = DeriveCurveKeys(secret);
  void* socket = client->socket_.get();
  SetZmqOption(socket, ZMQ_CURVE_SERVERKEY, std::span<const uint8_t>(keys.server.public_key));
  SetZmqOption(socket, ZMQ_CURVE_PUBLICKEY, std::span<const uint8_t>(keys.client.public_key));
  SetZmqOption(socket, ZMQ_CURVE_SECRETKEY, std::span<const uint8_t>(keys.client.secret_key));
  SetZmqOption(socket, ZMQ_LINGER, 0);
  SetZmqOption(socket, ZMQ_IPV6, 1);
  SetZmqOption(socket, ZMQ_RECONNECT_IVL, -1);  // A server that is gone is an event, not a pause.
  SetZmqOption(socket, ZMQ_RCVHWM, 0);          // Reading goes on while we compute, so heartbeats are answered.
  SetZmqOption(socket, ZMQ_SNDHWM, kSendQueueMessages);
  SetZmqOption(client->monitor_.get(), ZMQ_LINGER, 0);
  if (zmq_socket_monitor(socket, kMonitorEndpoint, kEvents) != 0 ||
      zmq_connect(client->monitor_.get(), kMonitorEndpoint) != 0) {
    return Internal(std::string("no socket monitor: ") + zmq_strerror(zmq_errno()));
  }
  if (zmq_connect(socket, client->address_.c_str()) != 0) {
    return InvalidArgument("can't connect to " + client->address_ + ": " + zmq_strerror(zmq_errno()));
  }
  FD_RETURN_IF_ERROR(client->SayHello(name));
  return client;
}

Status ApiClient::SayHello(const std::string& name) {
  last_heard_ns_ = NowNs();
  FD_RETURN_IF_ERROR(Send(HelloMessage{kApiProtocol, name}));
  const int64_t deadline_ns = NowNs() + int64_t{kAnswerMs} * 1000000;
  while (NowNs() < deadline_ns) {
    Result<ServerMessage> message = ReceiveAny(100);
    if (!message.ok() && message.status().code() == StatusCode::kWouldBlock) continue;
    if (!message.ok()) return message.status();
    if (auto* info = std::get_if<ServerInfo>(&*message)) {
      info_ = std::move(*info);
      greeted_ = true;
      return OkStatus();
    }
  }
  return {StatusCode::kDeadlineExceeded, "no answer from " + address_ + " within " + std::to_string(kAnswerMs / 1000) +
                                             " s: is it an S-worker's API address?"};
}

template <typename Message>
Status ApiClient::Send(const Message& message) {
  FD_RETURN_IF_ERROR(CheckConnection());
  buffer_.clear();
  Encode(message, buffer_);
  if (static_cast<int64_t>(buffer_.size()) > kApiMaxMessageBytes) {
    return InvalidArgument("a message of " + std::to_string(buffer_.size()) + " bytes is longer than the API takes");
  }
  if (zmq_send(socket_.get(), buffer_.data(), buffer_.size(), ZMQ_DONTWAIT) < 0) {
    return Unavailable("can't send to " + address_ + ": " + zmq_strerror(zmq_errno()));
  }
  return OkStatus();
}

Status ApiClient::Submit(const SubmitMessage& message) { return Send(message); }
Status ApiClient::Cancel(RequestId id) { return Send(CancelMessage{id}); }

Status ApiClient::CheckConnection() {
  ZmqEvent event;
  while (ReceiveZmqEvent(monitor_.get(), &event)) {
    if (!failure_.empty()) continue;
    failure_ = event.type == ZMQ_EVENT_CLOSED         ? "closed"
               : event.type == ZMQ_EVENT_DISCONNECTED ? "disconnected"
                                                      : "handshake";
  }
  if (failure_.empty()) {
    const int64_t silent_ms = (NowNs() - last_heard_ns_) / 1000000;
    if (!greeted_ || silent_ms < kApiSilenceMs) return OkStatus();
    return Unavailable("the server at " + address_ + " has been silent for " + std::to_string(silent_ms / 1000) +
                       " s: it is stopped or unreachable");
  }
  if (greeted_) return Unavailable("the server at " + address_ + " is gone: it closed the connection");
  if (failure_ == "closed") return Unavailable("nobody listens on " + address_ + ": is the cluster up?");
  return {StatusCode::kPermissionDenied, "the server at " + address_ +
                                             " closed the connection during the handshake: it has another secret "
                                             "file, or is no FastDecode S-worker"};
}

Result<ServerMessage> ApiClient::ReceiveAny(int timeout_ms) {
  ZmqMessage frame;
  if (!frame.Receive(socket_.get(), ZMQ_DONTWAIT)) {
    FD_RETURN_IF_ERROR(CheckConnection());
    zmq_pollitem_t items[] = {{socket_.get(), 0, ZMQ_POLLIN, 0}, {monitor_.get(), 0, ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, timeout_ms);
    if (!frame.Receive(socket_.get(), ZMQ_DONTWAIT)) {
      FD_RETURN_IF_ERROR(CheckConnection());
      return Status(StatusCode::kWouldBlock, "");
    }
  }
  last_heard_ns_ = NowNs();
  FD_ASSIGN_OR_RETURN(ServerMessage message, DecodeServerMessage(frame.bytes()));
  if (const auto* error = std::get_if<ErrorMessage>(&message)) {
    return Status(error->code == "bad_version" ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
                  "the server at " + address_ + " says " + error->code + ": " + error->message);
  }
  return message;
}

Result<ServerMessage> ApiClient::Receive(int timeout_ms) {
  if (!kept_.empty()) {
    ServerMessage message = std::move(kept_.front());
    kept_.pop_front();
    return message;
  }
  const int64_t deadline_ns = NowNs() + int64_t{timeout_ms} * 1000000;
  while (true) {
    const int64_t left_ms = std::max<int64_t>(0, (deadline_ns - NowNs()) / 1000000);
    Result<ServerMessage> message = ReceiveAny(static_cast<int>(std::min<int64_t>(left_ms, kApiHeartbeatMs)));
    const bool nothing = !message.ok() && message.status().code() == StatusCode::kWouldBlock;
    const bool heartbeat = message.ok() && std::holds_alternative<HeartbeatMessage>(*message);
    if (!nothing && !heartbeat) return message;
    if (left_ms == 0) return Status(StatusCode::kWouldBlock, "");
  }
}

Result<nlohmann::json> ApiClient::Stats(bool reset) {
  FD_RETURN_IF_ERROR(Send(StatsMessage{reset}));
  const int64_t deadline_ns = NowNs() + int64_t{kAnswerMs} * 1000000;
  while (NowNs() < deadline_ns) {
    Result<ServerMessage> message = ReceiveAny(100);
    if (!message.ok() && message.status().code() == StatusCode::kWouldBlock) continue;
    if (!message.ok()) return message.status();
    if (auto* reply = std::get_if<StatsReply>(&*message)) return std::move(reply->stats);
    if (!std::holds_alternative<HeartbeatMessage>(*message)) kept_.push_back(std::move(*message));
  }
  return Status(StatusCode::kDeadlineExceeded, "no stats from " + address_);
}

}  // namespace fastdecode
