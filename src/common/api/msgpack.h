// Msgpack from a peer, bounded before it becomes a tree: the depth of nesting, the
// number of values and the length of strings, so that neither stack nor heap follow
// what a message claims.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace fastdecode {

inline constexpr int kMsgpackMaxDepth = 8;
inline constexpr int64_t kMsgpackMaxValues = int64_t{1} << 21;
inline constexpr int64_t kMsgpackMaxStringBytes = int64_t{1} << 16;

// kDataLoss: not msgpack, cut short, bytes behind its end, binary or extension values, or
// past a limit. The message says which.
Result<nlohmann::json> ParseMsgpack(std::span<const uint8_t> bytes);

// Appends to `out`, which keeps its capacity from message to message.
void AppendMsgpack(const nlohmann::json& value, std::vector<uint8_t>& out);

}  // namespace fastdecode
