// What every carrier checks before it believes a header that came from outside.
#pragma once

#include <array>
#include <string>

#include "common/transport/transport.h"

namespace fastdecode {

inline constexpr std::array<const char*, kNumLanes> kLaneNames = {"decode", "bulk"};

// kDataLoss, and "PEER: LANE CHANNEL: what is wrong". channel: "stream", "ring".
Status CheckMessageHeader(const MessageHeader& header, size_t slot_bytes, uint32_t incarnation, const std::string& peer,
                          const char* lane, const char* channel);

}  // namespace fastdecode
