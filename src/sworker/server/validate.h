// Whether a request makes sense for the model: what the message alone can't tell.
#pragma once

#include <optional>

#include "common/config/model_config.h"
#include "sworker/request.h"

namespace fastdecode {

// Clips sampling.max_tokens to what the context leaves (prompt + max_tokens <=
// max_context). Codes of the error: "empty_prompt"; "too_long" (the prompt leaves no room for a token);
// "bad_token" (a prompt or stop id outside the vocabulary); "bad_parameter" (max_tokens
// below 1, temperature, top_k or top_p out of range). nullopt: fine.
std::optional<RequestError> ValidateRequest(Request& request, const ModelConfig& model, int max_context);

}  // namespace fastdecode
