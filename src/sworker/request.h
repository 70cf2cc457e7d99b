// A request as the S-worker knows it, from the API to the sampler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastdecode {

using SequenceId = uint64_t;  // never reused within a process; 0 is none

struct SamplingParams {
  float temperature = 0;          // 0: greedy
  int top_k = 0;                  // 0: off
  float top_p = 1;                // 1: off
  uint64_t seed = 0;              // drawn by the server if the client gave none
  int max_tokens = 256;           // clipped by the context
  std::vector<int32_t> stop_ids;  // beside the model's own end-of-sequence ids
  bool ignore_eos = false;        // the model's own end-of-sequence ids do not stop
  bool logprobs = false;          // of the chosen token, raw log-softmax
};

struct Request {
  SequenceId id = 0;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
};

enum class FinishReason { kStop, kLength, kCancelled, kError };
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct RequestError {
  std::string code;     // "rworker_lost", "too_long", "empty_prompt", "bad_token", "shutting_down", ...
  std::string message;  // for people
};

// What a request's stream carries.
struct TokenUpdate {
  SequenceId id = 0;
  int32_t token = 0;
  float logprob = 0;  // only if asked for
};
struct RequestFinished {
  SequenceId id = 0;
  FinishReason reason = FinishReason::kStop;
  RequestError error;  // only with kError
};

}  // namespace fastdecode
