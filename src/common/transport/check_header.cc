#include "common/transport/check_header.h"

#include <string>

namespace fastdecode {

Status CheckMessageHeader(const MessageHeader& header, size_t slot_bytes, uint32_t incarnation) {
  const size_t capacity = slot_bytes - sizeof(MessageHeader);
  if (header.magic != kWireMagic) {
    return DataLoss("no message starts like this (magic " + std::to_string(header.magic) + ")");
  }
  if (header.version != kWireVersion) {
    return DataLoss("message of version " + std::to_string(header.version) + ", expected " +
                    std::to_string(kWireVersion));
  }
  if (header.incarnation != incarnation) {
    return DataLoss("message of incarnation " + std::to_string(header.incarnation) + ", this session is " +
                    std::to_string(incarnation));
  }
  if (!IsKnownMessageType(header.type)) return DataLoss("unknown message type " + std::to_string(header.type));
  if (header.payload_bytes > capacity) {
    return DataLoss("message of " + std::to_string(header.payload_bytes) + " bytes, a slot holds " +
                    std::to_string(capacity));
  }
  return OkStatus();
}

}  // namespace fastdecode
