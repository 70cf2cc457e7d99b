// A measurement as JSON and as a table for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "driver.h"
#include "workload.h"

namespace fastdecode {

// The fields that scripts rely on; docs/bench.md names them.
nlohmann::ordered_json ToJson(const Measured& measured, const Workload& workload);

// `json` as ToJson gave it. With bars for the shares of time.
std::string Table(const nlohmann::ordered_json& json);

// "████████░░░░": `share` of `cells` filled, to an eighth of a cell.
std::string Bar(double share, int cells);

}  // namespace fastdecode
