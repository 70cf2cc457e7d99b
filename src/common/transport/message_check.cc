#include "common/transport/message_check.h"

namespace fastdecode {

Status CheckMessageHeader(const MessageHeader& header, size_t slot_bytes, uint32_t incarnation, const std::string& peer,
                          const char* lane, const char* channel) {
  std::string what;
  if (header.magic != kWireMagic) {
    what = "no message starts like this (magic " + std::to_string(header.magic) + ")";
  } else if (header.version != kWireVersion) {
    what = "message of version " + std::to_string(header.version) + ", expected " + std::to_string(kWireVersion);
  } else if (header.incarnation != incarnation) {
    what = "message of incarnation " + std::to_string(header.incarnation) + ", this session is " +
           std::to_string(incarnation);
  } else if (!IsKnownMessageType(header.type)) {
    what = "unknown message type " + std::to_string(header.type);
  } else if (header.payload_bytes > slot_bytes - sizeof(MessageHeader)) {
    what = "message of " + std::to_string(header.payload_bytes) + " bytes, a slot holds " +
           std::to_string(slot_bytes - sizeof(MessageHeader));
  } else {
    return OkStatus();
  }
  return DataLoss(peer + ": " + lane + " " + channel + ": " + what);
}

}  // namespace fastdecode
