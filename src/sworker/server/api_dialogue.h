// What clients say and what they are told: the messages of docs/protocol.md between
// the socket and the core. API thread only, but for StopAccepting.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/api/api_codec.h"
#include "common/config/model_config.h"
#include "sworker/request.h"
#include "sworker/server/api_router.h"
#include "sworker/server/api_sessions.h"
#include "sworker/server/request_sink.h"

namespace fastdecode {

class ApiDialogue {
 public:
  // All but `info` and `model` outlive it.
  ApiDialogue(ApiRouter& router, const ServerInfo& info, const ModelConfig& model, RequestSink& sink)
      : router_(router), info_(info), model_(model), sink_(sink) {}

  void OnMessage(const ApiRouter::Received& received);
  // The core's news, in its order.
  void Tell(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished);
  // Something to every client, so that each knows that we live; finds those that are gone.
  void Heartbeat();
  // Every open request ends with "shutting_down".
  void EndOpenRequests();
  void StopAccepting() { accepting_.store(false); }  // any thread

 private:
  ApiPeer* Greet(const ApiRouter::Received& received, const ClientMessage& message);
  void On(ApiPeer& client, HelloMessage& message);
  void On(ApiPeer& client, SubmitMessage& message);
  void On(ApiPeer& client, CancelMessage& message);
  void On(ApiPeer& client, StatsMessage& message);
  void Refuse(const std::string& routing_id, const std::string& who, const ErrorMessage& error);
  void Finish(const RequestFinished& finished);
  void SendTokens();

  template <typename Message>
  void Send(ApiPeer& client, const Message& message);
  template <typename Message>
  ApiRouter::Sent SendTo(const std::string& routing_id, const Message& message);
  void CancelAll(ApiPeer& client, const std::string& why);

  ApiRouter& router_;
  const ServerInfo info_;
  const ModelConfig model_;
  RequestSink& sink_;
  std::atomic<bool> accepting_{true};
  ApiSessions sessions_;
  std::vector<uint8_t> buffer_;        // the message that is being sent
  std::vector<ApiPeer*> with_tokens_;  // within Tell
};

}  // namespace fastdecode
