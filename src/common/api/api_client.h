// One connection to an S-worker's API. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/api/api_codec.h"
#include "common/api/zmq_handles.h"
#include "common/base/status.h"

namespace fastdecode {

class ApiClient {
 public:
  // `address` as "tcp://HOST:PORT" or "HOST:PORT"; `name` is what the server's log calls us. Errors:
  // kInvalidArgument (no address, another protocol version), kUnavailable (nobody listens),
  // kPermissionDenied (another secret, or no S-worker), kDeadlineExceeded (no answer).
  static Result<std::unique_ptr<ApiClient>> Connect(const std::string& address, std::span<const uint8_t, 32> secret,
                                                    const std::string& name);

  const ServerInfo& info() const { return info_; }

  // Never waits. kUnavailable: the connection is gone, or its queue is full.
  Status Submit(const SubmitMessage& message);
  Status Cancel(RequestId id);

  // The next message about a request: AcceptedMessage, TokensMessage or FinishedMessage.
  // kWouldBlock: none within timeout_ms. kUnavailable: the server is gone or silent, or
  // sent an ErrorMessage, which ends the connection for us.
  Result<ServerMessage> Receive(int timeout_ms);

  // Asks and waits; what comes meanwhile is kept for Receive. `reset` begins a new window after the answer.
  Result<nlohmann::json> Stats(bool reset);

 private:
  ApiClient() = default;
  template <typename Message>
  Status Send(const Message& message);
  Result<ServerMessage> ReceiveAny(int timeout_ms);
  Status SayHello(const std::string& name);
  // Ok while the connection stands.
  Status CheckConnection();

  std::string address_;
  ZmqContext context_;
  ZmqSocket socket_;
  ZmqSocket monitor_;
  ServerInfo info_;
  bool greeted_ = false;
  std::string failure_;  // of the handshake, or the connection's end
  int64_t last_heard_ns_ = 0;
  std::deque<ServerMessage> kept_;
  std::vector<uint8_t> buffer_;
};

}  // namespace fastdecode
