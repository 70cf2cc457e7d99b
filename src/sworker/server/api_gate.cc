#include "sworker/server/api_gate.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <sys/socket.h>

#include <array>
#include <vector>

#include "common/base/clock.h"
#include "common/base/logging.h"

namespace fastdecode {
namespace {

constexpr char kAuthenticationEndpoint[] = "inproc://zeromq.zap.01";  // ZeroMQ's RFC 27 names it.
constexpr char kMonitorEndpoint[] = "inproc://api-monitor";
constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;

std::string PeerAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return std::string(text) + ":" + std::to_string(ntohs(v4.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return "[" + std::string(text) + "]:" + std::to_string(ntohs(v6.sin6_port));
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<ApiGate>> ApiGate::Open(void* context, void* router, const std::array<uint8_t, 32>& client_key) {
  std::unique_ptr<ApiGate> gate(new ApiGate);
  gate->client_key_ = client_key;
  gate->authentication_.reset(zmq_socket(context, ZMQ_REP));
  gate->monitor_.reset(zmq_socket(context, ZMQ_PAIR));
  if (!gate->authentication_ || !gate->monitor_) return Internal("no ZeroMQ socket left");
  SetZmqOption(gate->authentication_.get(), ZMQ_LINGER, 0);
  SetZmqOption(gate->monitor_.get(), ZMQ_LINGER, 0);
  SetZmqOption(gate->monitor_.get(), ZMQ_RCVHWM, 0);
  if (zmq_bind(gate->authentication_.get(), kAuthenticationEndpoint) != 0 ||
      zmq_socket_monitor(router, kMonitorEndpoint, kEvents) != 0 ||
      zmq_connect(gate->monitor_.get(), kMonitorEndpoint) != 0) {
    return Internal(std::string("the API's gate can't be set up: ") + zmq_strerror(zmq_errno()));
  }
  return gate;
}

void ApiGate::AnswerAuthentication() {
  // Version, request id, domain, address, identity, mechanism, credentials.
  constexpr size_t kFrames = 7;
  std::vector<std::string> frames;
  ZmqMessage frame;
  while (frame.Receive(authentication_.get(), ZMQ_DONTWAIT)) {
    frames.push_back(frame.text());
    if (frame.more()) continue;
    const bool admitted = frames.size() == kFrames && frames[5] == "CURVE" && frames[6].size() == client_key_.size() &&
                          sodium_memcmp(frames[6].data(), client_key_.data(), client_key_.size()) == 0;
    if (!admitted) {
      LOG(WARNING) << "API: refused a connection from " << (frames.size() > 3 ? frames[3] : "?")
                   << ": it does not know the secret (its key is not the clients')";
    }
    const std::string reply[] = {
        "1.0", frames.size() > 1 ? frames[1] : "", admitted ? "200" : "400", admitted ? "OK" : "unknown key", "", ""};
    for (size_t i = 0; i < std::size(reply); ++i) {
      zmq_send(authentication_.get(), reply[i].data(), reply[i].size(), i + 1 < std::size(reply) ? ZMQ_SNDMORE : 0);
    }
    frames.clear();
  }
}

ApiGate::Connection& ApiGate::Peer(ZmqMessage& message) {
  const std::string fd = message.Property("__fd");
  return connections_[fd.empty() ? -1 : std::atoi(fd.c_str())];
}

void ApiGate::FollowConnections() {
  ZmqEvent event;
  while (ReceiveZmqEvent(monitor_.get(), &event)) {
    if (event.type == ZMQ_EVENT_ACCEPTED) {
      Connection connection;
      connection.accepted_ns = NowNs();
      if (std::string address = PeerAddress(event.value); !address.empty()) connection.address = std::move(address);
      connections_[event.value] = std::move(connection);
    } else if (event.type == ZMQ_EVENT_DISCONNECTED) {
      OnDisconnected(event.value);
    } else {
      failure_ = DescribeHandshakeFailure(event);  // Its disconnection is the next event.
    }
  }
}

void ApiGate::OnDisconnected(int fd) {
  const Connection connection = std::move(connections_[fd]);
  connections_.erase(fd);
  std::string failure = std::exchange(failure_, "");
  if (connection.said_something) {
    LOG(INFO) << "API: connection from " << connection.address << " closed";
    return;
  }
  // ZeroMQ has no event for these two.
  if (NowNs() - connection.accepted_ns > int64_t{kApiHandshakeMs} * 1000000) {
    failure = "it did not complete the handshake within " + std::to_string(kApiHandshakeMs / 1000) + " s";
  } else if (failure.empty()) {
    failure = "what it sent is not the API's protocol, or it left before it had said hello";
  }
  LOG(WARNING) << "API: refused a connection from " << connection.address << ": " << failure;
}

}  // namespace fastdecode
