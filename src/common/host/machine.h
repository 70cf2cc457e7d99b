// What this program runs on, for reports.
#pragma once

#include <nlohmann/json.hpp>

namespace fastdecode {

// {"cpu": "...", "cpus": usable here, "memory_bytes": .., "kernel": "..."}
nlohmann::ordered_json DescribeMachine();

}  // namespace fastdecode
