// Who may in: answers ZeroMQ's authentication requests and says in the log, once a
// connection, who was refused and why. API thread only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "common/api/zmq_handles.h"
#include "common/base/status.h"

namespace fastdecode {

inline constexpr int kApiHandshakeMs = 5000;  // A connection that takes longer is closed.

class ApiGate {
 public:
  // Binds the authentication endpoint of `context` and watches `router`, which must not be
  // bound yet. Admits `client_key` alone.
  static Result<std::unique_ptr<ApiGate>> Open(void* context, void* router, const std::array<uint8_t, 32>& client_key);

  // To be polled for input.
  void* authentication() const { return authentication_.get(); }
  void* monitor() const { return monitor_.get(); }

  void AnswerAuthentication();
  // Call it after the router's messages were read: a connection that sent one is no stranger.
  void FollowConnections();
  // `message` came from the router.
  void Saw(ZmqMessage& message) { Peer(message).said_something = true; }

 private:
  struct Connection {
    std::string address = "a peer that is already gone";  // ZeroMQ tells no more once it has closed the socket.
    int64_t accepted_ns = 0;
    bool said_something = false;
  };

  ApiGate() = default;
  Connection& Peer(ZmqMessage& message);
  void OnDisconnected(int fd);

  std::array<uint8_t, 32> client_key_{};
  ZmqSocket authentication_;
  ZmqSocket monitor_;
  std::unordered_map<int, Connection> connections_;  // by file descriptor
  std::string failure_;                              // Of the handshake whose disconnection comes next.
};

}  // namespace fastdecode
