#include "sworker/server/api_router.h"

#include <algorithm>
#include <iterator>

#include "common/api/api_messages.h"
#include "common/api/curve_keys.h"
#include "common/base/logging.h"
#include "common/config/address.h"

namespace fastdecode {
namespace {

constexpr int kSendQueueMessages = 4096;    // A client that is this far behind is lagging.
constexpr int kReceiveQueueMessages = 256;  // Beyond it, TCP holds the client back.
constexpr int kFlushMs = 2000;

void SetOptions(void* socket, bool v6, const CurveKeyPair& keys) {
  SetZmqOption(socket, ZMQ_ROUTER_MANDATORY, 1);  // A client that is gone or full is told to us, not passed over.
  SetZmqOption(socket, ZMQ_MAXMSGSIZE, kApiMaxMessageBytes);
  SetZmqOption(socket, ZMQ_SNDHWM, kSendQueueMessages);
  SetZmqOption(socket, ZMQ_RCVHWM, kReceiveQueueMessages);
  SetZmqOption(socket, ZMQ_LINGER, kFlushMs);
  SetZmqOption(socket, ZMQ_HANDSHAKE_IVL, kApiHandshakeMs);
  SetZmqOption(socket, ZMQ_HEARTBEAT_IVL, kApiHeartbeatMs);
  SetZmqOption(socket, ZMQ_HEARTBEAT_TIMEOUT, kApiSilenceMs);
  SetZmqOption(socket, ZMQ_IPV6, v6 ? 1 : 0);
  SetZmqOption(socket, ZMQ_CURVE_SERVER, 1);
  SetZmqOption(socket, ZMQ_CURVE_SECRETKEY, std::span<const uint8_t>(keys.secret_key));
  CHECK_EQ(zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "fastdecode", 10), 0);  // Without a gate nobody gets in.
}

}  // namespace

Result<std::unique_ptr<ApiRouter>> ApiRouter::Open(const std::string& listen, std::span<const uint8_t, 32> secret) {
  std::unique_ptr<ApiRouter> router(new ApiRouter);
  FD_RETURN_IF_ERROR(router->Bind(listen, secret));
  return router;
}

ApiRouter::~ApiRouter() = default;

Status ApiRouter::Bind(const std::string& listen, std::span<const uint8_t, 32> secret) {
  FD_ASSIGN_OR_RETURN(HostPort address, ParseTcpUrl(listen));
  const bool v6 = address.host.find(':') != std::string::npos;
  if (address.host == "localhost") address.host = "127.0.0.1";  // ZeroMQ binds to addresses only.
  context_.reset(zmq_ctx_new());
  if (!context_) return Internal("no ZeroMQ context");
  socket_.reset(zmq_socket(context_.get(), ZMQ_ROUTER));
  if (!socket_) return Internal(std::string("no ZeroMQ socket: ") + zmq_strerror(zmq_errno()));
  const CurveKeys keys = DeriveCurveKeys(secret);
  SetOptions(socket_.get(), v6, keys.server);
  FD_ASSIGN_OR_RETURN(gate_, ApiGate::Open(context_.get(), socket_.get(), keys.client.public_key));
  if (zmq_bind(socket_.get(), ("tcp://" + address.ToString()).c_str()) != 0) {
    return Unavailable("the API can't listen on " + listen + ": " + zmq_strerror(zmq_errno()) +
                       "; choose another sworker.listen, or stop what holds it");
  }
  char endpoint[256];
  size_t size = sizeof(endpoint);
  CHECK_EQ(zmq_getsockopt(socket_.get(), ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
  endpoint_ = endpoint;
  return OkStatus();
}

bool ApiRouter::Wait(int wake_fd, int64_t timeout_ms) {
  zmq_pollitem_t items[] = {{socket_.get(), 0, ZMQ_POLLIN, 0},
                            {nullptr, wake_fd, ZMQ_POLLIN, 0},
                            {gate_->authentication(), 0, ZMQ_POLLIN, 0},
                            {gate_->monitor(), 0, ZMQ_POLLIN, 0}};
  zmq_poll(items, std::size(items), static_cast<long>(std::max<int64_t>(0, timeout_ms)));
  if (items[2].revents != 0) gate_->AnswerAuthentication();
  return items[1].revents != 0;
}

bool ApiRouter::Receive(Received* received) {
  if (!frame_.Receive(socket_.get(), ZMQ_DONTWAIT)) return false;
  received->routing_id = frame_.text();
  received->frames = 0;
  while (frame_.more() && frame_.Receive(socket_.get(), 0)) ++received->frames;
  received->payload = frame_.bytes();
  received->peer_address = frame_.Property("Peer-Address");
  gate_->Saw(frame_);
  return true;
}

ApiRouter::Sent ApiRouter::Send(const std::string& routing_id, std::span<const uint8_t> bytes) {
  void* socket = socket_.get();
  if (zmq_send(socket, routing_id.data(), routing_id.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
    return zmq_errno() == EAGAIN ? Sent::kFull : Sent::kGone;
  }
  return zmq_send(socket, bytes.data(), bytes.size(), ZMQ_DONTWAIT) < 0 ? Sent::kGone : Sent::kYes;
}

}  // namespace fastdecode
