// The API's socket: ROUTER, CURVE, bounded in every direction. API thread only, but
// for Open.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/api/zmq_handles.h"
#include "common/base/status.h"
#include "sworker/server/api_gate.h"

namespace fastdecode {

class ApiRouter {
 public:
  enum class Sent {
    kYes,
    kFull,  // The client's queue is full: it does not read.
    kGone,  // Its connection has ended.
  };

  struct Received {
    std::string routing_id;
    std::string peer_address;          // "127.0.0.1"
    int frames = 0;                    // behind the routing id; a proper message has one
    std::span<const uint8_t> payload;  // the last frame, until the next Receive
  };

  // Binds. Errors as in ApiServer::Start.
  static Result<std::unique_ptr<ApiRouter>> Open(const std::string& listen, std::span<const uint8_t, 32> secret);
  // Lets what was sent flush for at most two seconds.
  ~ApiRouter();

  const std::string& endpoint() const { return endpoint_; }

  // Waits for messages, connections, `wake_fd` or the time. Answers authentication itself.
  // True: wake_fd is readable.
  bool Wait(int wake_fd, int64_t timeout_ms);

  // Never waits. False: nothing there.
  bool Receive(Received* received);
  // To be called once nothing is left to be received: logs who came and who was refused.
  void FollowConnections() { gate_->FollowConnections(); }
  Sent Send(const std::string& routing_id, std::span<const uint8_t> bytes);

 private:
  ApiRouter() = default;
  Status Bind(const std::string& listen, std::span<const uint8_t, 32> secret);

  ZmqContext context_;  // goes last
  ZmqSocket socket_;
  std::unique_ptr<ApiGate> gate_;
  ZmqMessage frame_;
  std::string endpoint_;
};

}  // namespace fastdecode
