// What every transport checks before it believes a message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "common/wire/messages.h"

namespace fastdecode {

// Magic, version, incarnation, type, and that a slot of this size holds the payload. kDataLoss: which is wrong.
Status CheckMessageHeader(const MessageHeader& header, size_t slot_bytes, uint32_t incarnation);

}  // namespace fastdecode
