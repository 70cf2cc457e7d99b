#include "sworker/server/validate.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace fastdecode {
namespace {

RequestError BadParameter(const std::string& name, const std::string& found, const std::string& expected) {
  return {"bad_parameter", name + " is " + found + ": expected " + expected};
}

// The first id outside the vocabulary, as an error.
std::optional<RequestError> CheckIds(const char* what, const std::vector<int32_t>& ids, int64_t vocab_size) {
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= vocab_size; });
  if (bad == ids.end()) return std::nullopt;
  return RequestError{"bad_token", std::string(what) + "[" + std::to_string(bad - ids.begin()) + "] is " +
                                       std::to_string(*bad) + ": the model's ids go from 0 to " +
                                       std::to_string(vocab_size - 1)};
}

std::optional<RequestError> CheckSampling(const SamplingParams& sampling) {
  constexpr float kMaxTemperature = 1000;
  if (sampling.max_tokens < 1) {
    return BadParameter("max_tokens", std::to_string(sampling.max_tokens), "at least 1");
  }
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0 || sampling.temperature > kMaxTemperature) {
    return BadParameter("temperature", std::to_string(sampling.temperature), "a number from 0 (greedy) to 1000");
  }
  if (sampling.top_k < 0) return BadParameter("top_k", std::to_string(sampling.top_k), "0 (off) or more");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return BadParameter("top_p", std::to_string(sampling.top_p), "a number above 0 and up to 1 (off)");
  }
  return std::nullopt;
}

}  // namespace

std::optional<RequestError> ValidateRequest(Request& request, const ModelConfig& model, int max_context) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return RequestError{"empty_prompt", "the prompt has no token"};
  if (auto error = CheckSampling(request.sampling)) return error;
  if (prompt_tokens >= max_context) {
    return RequestError{"too_long", "the prompt has " + std::to_string(prompt_tokens) +
                                        " tokens and the context holds " + std::to_string(max_context) + ": at most " +
                                        std::to_string(max_context - 1) + " leave room for an answer"};
  }
  if (auto error = CheckIds("prompt", request.prompt, model.vocab_size)) return error;
  if (auto error = CheckIds("stop_ids", request.sampling.stop_ids, model.vocab_size)) return error;
  request.sampling.max_tokens =
      static_cast<int>(std::min<int64_t>(request.sampling.max_tokens, max_context - prompt_tokens));
  return std::nullopt;
}

}  // namespace fastdecode
