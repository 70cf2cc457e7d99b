// Reads JSON that comes from a user's hands: configs, profiles.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

inline constexpr size_t kMaxJsonFileBytes = size_t{1} << 20;

// Reads and parses a file of at most 1 MiB. Broken JSON, a key given twice and
// anything after the value are errors with line and column. kNotFound: no such file.
Result<nlohmann::json> ReadJsonFile(const std::string& path);

// The same of text; `name` begins each message.
Result<nlohmann::json> ParseJsonText(const std::string& text, const std::string& name);

}  // namespace fastdecode
