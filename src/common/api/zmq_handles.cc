#include "common/api/zmq_handles.h"

#include <cstring>

namespace fastdecode {

bool ReceiveZmqEvent(void* monitor, ZmqEvent* event) {
  ZmqMessage frame;
  if (!frame.Receive(monitor, ZMQ_DONTWAIT)) return false;
  uint16_t type = 0;
  CHECK_EQ(frame.bytes().size(), sizeof(type) + sizeof(event->value));
  std::memcpy(&type, frame.bytes().data(), sizeof(type));
  std::memcpy(&event->value, frame.bytes().data() + sizeof(type), sizeof(event->value));
  event->type = type;
  ZmqMessage address;  // Always the listener's own: of no use here.
  address.Receive(monitor, 0);
  return true;
}

std::string DescribeHandshakeFailure(const ZmqEvent& event) {
  if (event.type == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return "it does not know the secret (its key is not the clients')";
  if (event.type == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) return "the connection ended during the handshake";
  switch (event.value) {
    case ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
      return "it came without CURVE encryption";
    case ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
    case ZMQ_PROTOCOL_ERROR_ZMTP_KEY_EXCHANGE:
      return "it does not know the secret (its messages can't be decrypted)";
    default:
      return "its handshake breaks the ZeroMQ protocol (error " + std::to_string(event.value) + ")";
  }
}

}  // namespace fastdecode
