// Reads a JSON file that comes from a user's hands. Internal to common/config.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

// Reads and parses a file of at most 1 MiB. Broken JSON, a key given twice and
// anything after the value are errors with line and column. kNotFound: no such file.
Result<nlohmann::json> ReadJsonFile(const std::string& path);

}  // namespace fastdecode
