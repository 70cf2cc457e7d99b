// libzmq's C handles, owned. Functions return zmq's errors as text, never throw.
#pragma once

#include <zmq.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/logging.h"

namespace fastdecode {

struct ZmqContextDeleter {
  void operator()(void* context) const { zmq_ctx_term(context); }  // Waits until the sockets' linger is over.
};
struct ZmqSocketDeleter {
  void operator()(void* socket) const { zmq_close(socket); }
};
using ZmqContext = std::unique_ptr<void, ZmqContextDeleter>;
using ZmqSocket = std::unique_ptr<void, ZmqSocketDeleter>;

// One frame. Received into again and again.
class ZmqMessage {
 public:
  ZmqMessage() { zmq_msg_init(&message_); }
  ~ZmqMessage() { zmq_msg_close(&message_); }
  ZmqMessage(const ZmqMessage&) = delete;
  ZmqMessage& operator=(const ZmqMessage&) = delete;

  bool Receive(void* socket, int flags) { return zmq_msg_recv(&message_, socket, flags) >= 0; }
  bool more() const { return zmq_msg_more(&message_) != 0; }
  std::span<const uint8_t> bytes() {
    return {static_cast<const uint8_t*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  std::string text() { return std::string(static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)); }
  // "Peer-Address"; empty if there is none.
  std::string Property(const char* name) {
    const char* value = zmq_msg_gets(&message_, name);
    return value == nullptr ? "" : value;
  }

 private:
  zmq_msg_t message_;
};

// An option that can fail only if the code is wrong.
inline void SetZmqOption(void* socket, int option, int value) {
  CHECK_EQ(zmq_setsockopt(socket, option, &value, sizeof(value)), 0) << zmq_strerror(zmq_errno());
}
inline void SetZmqOption(void* socket, int option, int64_t value) {
  CHECK_EQ(zmq_setsockopt(socket, option, &value, sizeof(value)), 0) << zmq_strerror(zmq_errno());
}
inline void SetZmqOption(void* socket, int option, std::span<const uint8_t> value) {
  CHECK_EQ(zmq_setsockopt(socket, option, value.data(), value.size()), 0) << zmq_strerror(zmq_errno());
}

// A handshake that failed, in words: from the events of a socket monitor.
struct ZmqEvent {
  int type = 0;       // ZMQ_EVENT_...
  int32_t value = 0;  // file descriptor, errno or protocol error
};
// False: nothing there.
bool ReceiveZmqEvent(void* monitor, ZmqEvent* event);
// What a ZMQ_EVENT_HANDSHAKE_FAILED_... means.
std::string DescribeHandshakeFailure(const ZmqEvent& event);

}  // namespace fastdecode
