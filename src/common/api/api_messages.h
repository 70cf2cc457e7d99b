// The messages of the S-worker's API: api_codec.h makes msgpack of them.
// docs/protocol.md is the page that belongs to this header; change both together.
//
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fastdecode {

inline constexpr int kApiProtocol = 1;
inline constexpr int64_t kApiMaxMessageBytes = int64_t{8} << 20;
inline constexpr int kApiMaxPromptTokens = 1 << 20;
inline constexpr int kApiMaxStopIds = 1024;
// The server says something to every client at least this often; a peer that is silent
// for kApiSilenceMs is taken for dead.
inline constexpr int kApiHeartbeatMs = 1000;
inline constexpr int kApiSilenceMs = 4000;

// Request ids are the client's own numbers, unique among its open requests.
using RequestId = uint64_t;

// Server -> client, answer to hello.
struct ServerInfo {
  std::string version;     // of the program, "0.1.0"
  std::string model_path;  // folder with tokenizer.json, on the server's host
  std::string model_type;
  int64_t vocab_size = 0;
  int max_context = 0;
  int max_batch = 0;
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
};

// Client -> server.
struct HelloMessage {
  int protocol = kApiProtocol;
  std::string client;  // what the server's log calls it: "fastdecode batch, pid 4711"
};
struct SubmitMessage {
  RequestId id = 0;
  std::vector<int32_t> prompt;
  int64_t max_tokens = 256;
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  std::optional<uint64_t> seed;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  bool logprobs = false;
  bool stream = true;  // false: no tokens messages, the finished one has them all
};
struct CancelMessage {
  RequestId id = 0;
};
struct StatsMessage {
  bool reset = false;  // a new window begins after this answer
};

// Server -> client.
struct AcceptedMessage {
  RequestId id = 0;
  uint64_t seed = 0;       // drawn by the server if none was given
  int64_t max_tokens = 0;  // as clipped by the context
};
struct TokensMessage {  // columns of equal length
  std::vector<RequestId> ids;
  std::vector<int32_t> tokens;
  std::vector<std::optional<float>> logprobs;  // empty: nobody asked
};
struct FinishedMessage {
  RequestId id = 0;
  std::string finish_reason;  // "stop", "length", "cancelled", "error"
  int64_t prompt_tokens = 0;
  std::vector<int32_t> token_ids;
  std::optional<std::vector<float>> logprobs;
  uint64_t seed = 0;
  std::string error_code;  // with "error" only
  std::string error_message;
};
struct StatsReply {
  nlohmann::json stats;
};
struct HeartbeatMessage {};
struct ErrorMessage {  // about the connection or a message, not the end of a request
  std::string code;
  std::string message;
  std::optional<RequestId> id;  // of the message that it is about, if that had one
};

}  // namespace fastdecode
