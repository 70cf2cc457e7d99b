// Requests in, tokens out: the S-worker's token-level API. docs/protocol.md is the
// page that belongs to it.
//
// One thread owns a ZeroMQ ROUTER socket. Every client proves by CURVE that it knows
// the secret. Whatever a client sends is bounded and checked before it is believed;
// whatever it fails to read never delays another client: past its queue's capacity
// its requests are cancelled, with one log line that names it. The requests of a
// client that vanished are cancelled within seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/api/api_messages.h"
#include "common/base/status.h"
#include "common/config/model_config.h"
#include "sworker/request.h"
#include "sworker/server/request_sink.h"

namespace fastdecode {

struct ApiServerOptions {
  std::string listen;  // "tcp://127.0.0.1:7100"; port 0 picks one
  ServerInfo info;     // What a client is told when it says hello.
};

class ApiServer {
 public:
  // Binds, starts the API thread and answers from then on. `sink` outlives the server;
  // `secret` is what every client must know. Errors: kInvalidArgument (an address that
  // can't be parsed), kUnavailable (the port is taken).
  static Result<std::unique_ptr<ApiServer>> Start(const ApiServerOptions& options, std::span<const uint8_t, 32> secret,
                                                  const ModelConfig& model, RequestSink& sink);
  ~ApiServer();  // Stop()

  // "tcp://127.0.0.1:7100", with the port that was picked.
  const std::string& endpoint() const;

  // Any thread; copies and returns at once. Give what one pass produced in one call:
  // tokens travel in one message a client and call. A sequence's tokens come in the order of
  // the calls and before its RequestFinished; ids that are no longer known are ignored.
  void Publish(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished);

  // Any thread. Requests that come later are refused with code "shutting_down".
  void StopAccepting();

  // Sends what was published, ends every request that is still open with error
  // "shutting_down", lets the socket flush for at most two seconds, joins the thread.
  void Stop();

 private:
  class Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastdecode
