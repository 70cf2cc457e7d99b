// Books of the API server: clients, their open requests, and the tokens on their way
// to each. No I/O. API thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/api/api_messages.h"
#include "sworker/request.h"

namespace fastdecode {

// What all clients together may have open; a submit beyond it is refused ("overloaded").
inline constexpr size_t kApiMaxOpenRequests = size_t{1} << 16;
inline constexpr int64_t kApiMaxOpenPromptTokens = int64_t{1} << 26;
inline constexpr size_t kApiMaxClients = 1024;

// A client, as the server sees it.
struct ApiPeer {
  enum class State {
    kReading,  // Takes its messages.
    kLagging,  // Its queue is full: its requests were cancelled, and it is still to be told so.
    kGone,     // Its connection ended; Sweep removes it.
  };
  std::string routing_id;  // ZeroMQ's
  std::string name;        // for the log: what it calls itself, and its address
  State state = State::kReading;
  std::unordered_map<RequestId, SequenceId> open;
  TokensMessage tokens;  // of this round of publishing, not sent yet
};

struct ApiRequest {
  ApiPeer* client = nullptr;
  RequestId id = 0;
  bool stream = true;
  bool logprobs = false;
  int64_t prompt_tokens = 0;
  uint64_t seed = 0;
  std::vector<int32_t> tokens;
  std::vector<float> token_logprobs;  // filled only if asked for
};

class ApiSessions {
 public:
  ApiPeer* FindClient(const std::string& routing_id);
  ApiPeer& AddClient(std::string routing_id, std::string name);
  size_t num_clients() const { return clients_.size(); }
  template <typename F>
  void ForEachClient(F&& visit) {
    for (auto& [routing_id, client] : clients_) visit(*client);
  }

  bool Full(int64_t prompt_tokens) const;
  // The client must not have the request's id open.
  SequenceId Open(ApiPeer& client, ApiRequest request);
  ApiRequest* Find(SequenceId sequence);
  // Books one token. Returns the client that has something to be sent, if any.
  ApiPeer* AddToken(const TokenUpdate& update);
  // Takes the request out of the books. `reason` and the rest of it come from `finished`.
  FinishedMessage Close(SequenceId sequence, const RequestFinished& finished);
  // Takes all of a client's requests out of the books and returns their sequences.
  std::vector<SequenceId> Abandon(ApiPeer& client);
  std::vector<SequenceId> OpenSequences() const;
  // Forgets the clients that are gone.
  void Sweep();

  size_t num_open() const { return requests_.size(); }
  int64_t open_prompt_tokens() const { return open_prompt_tokens_; }

 private:
  void Erase(SequenceId sequence);

  std::unordered_map<std::string, std::unique_ptr<ApiPeer>> clients_;
  std::unordered_map<SequenceId, ApiRequest> requests_;
  SequenceId last_sequence_ = 0;
  int64_t open_prompt_tokens_ = 0;
};

}  // namespace fastdecode
