// How a suite that drives both ends of a connection in one process has one of them on
// another host: the program far_end there executes the calls, asked over TCP.
//
// It dials the suite twice. On the first connection a call is a FarCall and the answer to it
// a FarAnswer, each followed by `bytes` bytes; one endpoint at a time, one call at a time. After
// a PrepareWait that was answered with yes, a FarAnswer of its own (bell) follows as soon as
// the endpoint's wait_fd is readable, unless a call comes first: that makes this connection
// the wait_fd here. On the second connection each byte, answered by one, fails the endpoint's queue pairs.
//
// Both programs are of one build: what they send each other is their own structs.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/transport/transport.h"

namespace fastdecode {

inline constexpr uint16_t kFarPort = 7300;  // at which the suite awaits far_end

struct FarCall {
  enum class What : uint32_t {
    kCreate,   // FarOptions follow; answer: its hello
    kConnect,  // the hello of the end here follows
    kAcquire,
    kPost,  // header and payload follow
    kAbandon,
    kPoll,  // answer: header and payload
    kRelease,
    kPrepareWait,  // answer: yes or no
    kStats,        // answer: EndpointStats
    kDestroy,
    kCreateRaw,  // the hello of the end here follows; answer: its hello
    kWriteRaw,   // bytes follow; answer: yes or no
    kDestroyRaw,
  };
  What what = What::kCreate;
  uint32_t lane = 0;
  int32_t index = -1;  // of a slot
  uint32_t bytes = 0;
};

struct FarAnswer {
  StatusCode status = StatusCode::kOk;  // if not ok, the bytes are its message
  bool bell = false;
  bool yes = false;
  uint8_t lane = 0;
  int32_t index = -1;
  uint32_t bytes = 0;
  int64_t arrived_ns = 0;
};

struct FarOptions {
  std::array<LaneOptions, kNumLanes> lanes;
  uint32_t incarnation = 0;
  char peer[64] = {};
};

// False: the other program is gone.
inline bool FarRead(int socket, void* bytes, size_t size) {
  return size == 0 || recv(socket, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}
inline bool FarWrite(int socket, const void* bytes, size_t size) {
  for (size_t sent = 0; sent < size;) {
    const ssize_t count = send(socket, static_cast<const char*>(bytes) + sent, size - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}
// One send for a head and what follows it.
template <typename Head>
bool FarWriteBoth(int socket, const Head& head, const void* bytes, size_t size) {
  iovec parts[] = {{const_cast<Head*>(&head), sizeof(head)}, {const_cast<void*>(bytes), size}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = size == 0 ? 1 : 2;
  const ssize_t count = sendmsg(socket, &message, MSG_NOSIGNAL);
  if (count < static_cast<ssize_t>(sizeof(head))) return false;
  const size_t sent = static_cast<size_t>(count) - sizeof(head);
  return FarWrite(socket, static_cast<const char*>(bytes) + sent, size - sent);
}

}  // namespace fastdecode
