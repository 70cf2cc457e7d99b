// Reads the rotary embedding's part of a model's config.json. Internal to common/config.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "common/base/status.h"
#include "common/config/model_config.h"

namespace fastdecode {

// `model` is the whole config.json without its nulls. kUnimplemented: a rope type that
// is not in this build, by name.
Status ReadRopeConfig(const nlohmann::json& model, RopeConfig* rope);

}  // namespace fastdecode
