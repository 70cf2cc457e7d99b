#include "sworker/server/api_sessions.h"

#include <optional>

#include "common/base/logging.h"

namespace fastdecode {

ApiPeer* ApiSessions::FindClient(const std::string& routing_id) {
  const auto found = clients_.find(routing_id);
  return found == clients_.end() ? nullptr : found->second.get();
}

ApiPeer& ApiSessions::AddClient(std::string routing_id, std::string name) {
  auto client = std::make_unique<ApiPeer>();
  client->routing_id = routing_id;
  client->name = std::move(name);
  ApiPeer& added = *client;
  clients_[std::move(routing_id)] = std::move(client);
  return added;
}

bool ApiSessions::Full(int64_t prompt_tokens) const {
  return requests_.size() >= kApiMaxOpenRequests || open_prompt_tokens_ + prompt_tokens > kApiMaxOpenPromptTokens;
}

SequenceId ApiSessions::Open(ApiPeer& client, ApiRequest request) {
  const SequenceId sequence = ++last_sequence_;
  CHECK(client.open.emplace(request.id, sequence).second);
  open_prompt_tokens_ += request.prompt_tokens;
  request.client = &client;
  requests_.emplace(sequence, std::move(request));
  return sequence;
}

ApiRequest* ApiSessions::Find(SequenceId sequence) {
  const auto found = requests_.find(sequence);
  return found == requests_.end() ? nullptr : &found->second;
}

ApiPeer* ApiSessions::AddToken(const TokenUpdate& update) {
  ApiRequest* request = Find(update.id);
  if (request == nullptr) return nullptr;  // Its client went away.
  request->tokens.push_back(update.token);
  if (request->logprobs) request->token_logprobs.push_back(update.logprob);
  if (!request->stream) return nullptr;
  TokensMessage& message = request->client->tokens;
  if (request->logprobs) {
    message.logprobs.resize(message.ids.size());  // Those before did not ask for any.
    message.logprobs.push_back(update.logprob);
  } else if (!message.logprobs.empty()) {
    message.logprobs.push_back(std::nullopt);
  }
  message.ids.push_back(request->id);
  message.tokens.push_back(update.token);
  return request->client;
}

FinishedMessage ApiSessions::Close(SequenceId sequence, const RequestFinished& finished) {
  ApiRequest& request = requests_.at(sequence);
  FinishedMessage message;
  message.id = request.id;
  message.finish_reason = FinishReasonName(finished.reason);
  message.prompt_tokens = request.prompt_tokens;
  message.token_ids = std::move(request.tokens);
  if (request.logprobs) message.logprobs = std::move(request.token_logprobs);
  message.seed = request.seed;
  if (finished.reason == FinishReason::kError) {
    message.error_code = finished.error.code.empty() ? "internal" : finished.error.code;
    message.error_message = finished.error.message;
  }
  request.client->open.erase(request.id);
  Erase(sequence);
  return message;
}

std::vector<SequenceId> ApiSessions::Abandon(ApiPeer& client) {
  std::vector<SequenceId> sequences;
  for (const auto& [id, sequence] : client.open) sequences.push_back(sequence);
  for (const SequenceId sequence : sequences) Erase(sequence);
  client.open.clear();
  client.tokens = {};
  return sequences;
}

void ApiSessions::Erase(SequenceId sequence) {
  const auto found = requests_.find(sequence);
  open_prompt_tokens_ -= found->second.prompt_tokens;
  requests_.erase(found);
}

std::vector<SequenceId> ApiSessions::OpenSequences() const {
  std::vector<SequenceId> sequences;
  for (const auto& [sequence, request] : requests_) sequences.push_back(sequence);
  return sequences;
}

void ApiSessions::Sweep() {
  std::erase_if(clients_, [](const auto& entry) { return entry.second->state == ApiPeer::State::kGone; });
}

}  // namespace fastdecode
