#include "sworker/server/api_dialogue.h"

#include <sodium.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/api/field_reader.h"
#include "common/base/logging.h"
#include "sworker/server/validate.h"

namespace fastdecode {
namespace {

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

// --- what clients say ---

void ApiDialogue::OnMessage(const ApiRouter::Received& received) {
  const std::string& from = received.routing_id;
  ApiPeer* client = sessions_.FindClient(from);
  const std::string& who = client != nullptr ? client->name : received.peer_address;
  if (received.frames != 1) return Refuse(from, who, {"bad_message", "a message is one frame", std::nullopt});
  auto decoded = DecodeClientMessage(received.payload);
  if (auto* malformed = std::get_if<MalformedMessage>(&decoded)) {
    if (client == nullptr || !malformed->submit_id || client->open.contains(*malformed->submit_id)) {
      return Refuse(from, who, {"bad_message", malformed->reason, malformed->submit_id});
    }
    return Send(*client, Refusal(*malformed->submit_id, {"bad_message", malformed->reason}));
  }
  auto& message = std::get<ClientMessage>(decoded);
  if (client == nullptr) client = Greet(received, message);
  if (client != nullptr) std::visit([&](auto& content) { On(*client, content); }, message);
}

// Takes in a client whose first message is a hello. nullptr: refused.
ApiPeer* ApiDialogue::Greet(const ApiRouter::Received& received, const ClientMessage& message) {
  const auto* hello = std::get_if<HelloMessage>(&message);
  ErrorMessage error;
  if (hello == nullptr) {
    error = {"no_hello", "hello must come first", std::nullopt};
  } else if (hello->protocol != kApiProtocol) {
    error = {"bad_version",
             "the client speaks API protocol " + std::to_string(hello->protocol) + ", this server " +
                 std::to_string(kApiProtocol),
             std::nullopt};
  } else if (sessions_.num_clients() >= kApiMaxClients) {
    error = {"overloaded", std::to_string(kApiMaxClients) + " clients are connected already", std::nullopt};
  }
  if (!error.code.empty()) {
    Refuse(received.routing_id, received.peer_address, error);
    return nullptr;
  }
  const std::string named = hello->client.empty() ? "a client" : "'" + Printable(hello->client) + "'";
  ApiPeer& client = sessions_.AddClient(received.routing_id, named + " at " + received.peer_address);
  LOG(INFO) << "API: " << client.name << " connected";
  return &client;
}

void ApiDialogue::Refuse(const std::string& routing_id, const std::string& who, const ErrorMessage& error) {
  LOG(WARNING) << "API: refused a message from " << who << ": " << error.message;
  SendTo(routing_id, error);  // A peer that can't take it loses no more than the reason.
}

void ApiDialogue::On(ApiPeer& client, HelloMessage&) { Send(client, info_); }

void ApiDialogue::On(ApiPeer& client, SubmitMessage& message) {
  if (client.state != ApiPeer::State::kReading) return;  // It is told that its requests were cancelled.
  if (client.open.contains(message.id)) {
    return Refuse(client.routing_id, client.name,
                  {"duplicate_id", "request " + std::to_string(message.id) + " is open already", message.id});
  }
  if (!accepting_.load()) {
    return Send(client, Refusal(message.id, {"shutting_down", "the server is shutting down"}));
  }
  const auto prompt_tokens = static_cast<int64_t>(message.prompt.size());
  if (sessions_.Full(prompt_tokens)) {
    return Send(client, Refusal(message.id, {"overloaded", std::to_string(sessions_.num_open()) + " requests with " +
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
  if (auto error = ValidateRequest(request, model_, info_.max_context)) {
    FinishedMessage refusal = Refusal(message.id, std::move(*error));
    refusal.prompt_tokens = prompt_tokens;
    return Send(client, refusal);
  }
  request.id = sessions_.Open(client, std::move(booked));
  Send(client, AcceptedMessage{message.id, seed, request.sampling.max_tokens});
  if (client.state == ApiPeer::State::kReading) sink_.Submit(std::move(request));
}

void ApiDialogue::On(ApiPeer& client, CancelMessage& message) {
  const auto open = client.open.find(message.id);
  if (open != client.open.end()) sink_.Cancel(open->second);  // Not open: it has just finished.
}

void ApiDialogue::On(ApiPeer& client, StatsMessage& message) {
  StatsReply reply{sink_.Stats()};
  reply.stats["api"] = {{"clients", sessions_.num_clients()},
                        {"open_requests", sessions_.num_open()},
                        {"open_prompt_tokens", sessions_.open_prompt_tokens()}};
  if (message.reset) sink_.ResetWindow();
  Send(client, reply);
}

// --- what the core says ---

void ApiDialogue::Tell(std::span<const TokenUpdate> tokens, std::span<const RequestFinished> finished) {
  for (const TokenUpdate& update : tokens) {
    ApiPeer* client = sessions_.AddToken(update);
    if (client != nullptr && client->tokens.ids.size() == 1) with_tokens_.push_back(client);
  }
  SendTokens();
  for (const RequestFinished& each : finished) Finish(each);
}

void ApiDialogue::SendTokens() {
  for (ApiPeer* client : with_tokens_) {
    Send(*client, client->tokens);
    client->tokens.ids.clear();
    client->tokens.tokens.clear();
    client->tokens.logprobs.clear();
  }
  with_tokens_.clear();
}

void ApiDialogue::Finish(const RequestFinished& finished) {
  const ApiRequest* request = sessions_.Find(finished.id);
  if (request == nullptr) return;  // Its client went away.
  ApiPeer& client = *request->client;
  Send(client, sessions_.Close(finished.id, finished));
}

void ApiDialogue::EndOpenRequests() {
  for (const SequenceId sequence : sessions_.OpenSequences()) {
    Finish({sequence, FinishReason::kError, {"shutting_down", "the server shut down before the request was done"}});
  }
}

// --- sending ---

void ApiDialogue::Heartbeat() {
  sessions_.ForEachClient([&](ApiPeer& client) {
    if (client.state != ApiPeer::State::kLagging) return Send(client, HeartbeatMessage{});
    const ApiRouter::Sent sent =
        SendTo(client.routing_id,
               ErrorMessage{"slow_client", "the client did not read its messages: its requests were cancelled", {}});
    if (sent == ApiRouter::Sent::kYes) client.state = ApiPeer::State::kReading;
    if (sent == ApiRouter::Sent::kGone) client.state = ApiPeer::State::kGone;
  });
  sessions_.Sweep();
}

template <typename Message>
void ApiDialogue::Send(ApiPeer& client, const Message& message) {
  if (client.state != ApiPeer::State::kReading) return;
  const ApiRouter::Sent sent = SendTo(client.routing_id, message);
  if (sent == ApiRouter::Sent::kYes) return;
  const bool full = sent == ApiRouter::Sent::kFull;
  client.state = full ? ApiPeer::State::kLagging : ApiPeer::State::kGone;
  CancelAll(client, full ? "does not read its messages" : "is gone");
}

template <typename Message>
ApiRouter::Sent ApiDialogue::SendTo(const std::string& routing_id, const Message& message) {
  buffer_.clear();
  Encode(message, buffer_);
  return router_.Send(routing_id, buffer_);
}

void ApiDialogue::CancelAll(ApiPeer& client, const std::string& why) {
  const std::vector<SequenceId> sequences = sessions_.Abandon(client);
  if (sequences.empty()) return;
  LOG(INFO) << "API: " << client.name << " " << why << "; " << sequences.size() << " requests of it cancelled";
  for (const SequenceId sequence : sequences) sink_.Cancel(sequence);
}

}  // namespace fastdecode
