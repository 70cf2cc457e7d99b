#include "common/transport/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode {
namespace {

constexpr int kBacklog = 16;
constexpr size_t kMaxDescriptors = 8;  // of one message, however many a peer sends

struct UnixAddress {
  sockaddr_un storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

UnixAddress AbstractAddress(const std::string& name) {
  UnixAddress address;
  address.storage.sun_family = AF_UNIX;
  CHECK_LT(name.size(), sizeof(address.storage.sun_path) - 1);
  std::memcpy(address.storage.sun_path + 1, name.data(), name.size());  // a zero first: no file
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Fd> OpenSocket() {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.valid()) return socket;
  return Status(StatusCode::kResourceExhausted, "cannot open a unix socket: " + DescribeErrno(errno));
}

}  // namespace

Result<Fd> ListenUnix(const std::string& name) {
  FD_ASSIGN_OR_RETURN(Fd socket, OpenSocket());
  const UnixAddress address = AbstractAddress(name);
  if (bind(socket.get(), address.get(), address.length) != 0 || listen(socket.get(), kBacklog) != 0) {
    return Unavailable("cannot listen on the unix socket @" + name + ": " + DescribeErrno(errno));
  }
  return socket;
}

Result<Fd> AcceptUnix(int listener) {
  Fd socket(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) return socket;
  const bool descriptors = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  if (descriptors) return Status(StatusCode::kResourceExhausted, "cannot accept: " + DescribeErrno(errno));
  return Status(StatusCode::kWouldBlock, {});
}

Result<Fd> DialUnix(const std::string& name) {
  FD_ASSIGN_OR_RETURN(Fd socket, OpenSocket());
  const UnixAddress address = AbstractAddress(name);
  if (connect(socket.get(), address.get(), address.length) == 0) return socket;
  if (errno == EAGAIN) return Unavailable("the unix socket @" + name + " has too many connections waiting");
  return Unavailable("cannot reach the unix socket @" + name +
                     " from here: " + (errno == ECONNREFUSED ? "nothing listens there" : DescribeErrno(errno)) +
                     " (does a container have another network namespace?)");
}

Status SendDescriptor(int socket, const void* bytes, size_t size, int descriptor) {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  const ssize_t count = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count == static_cast<ssize_t>(size)) return OkStatus();
  return Unavailable("cannot pass a descriptor: " + (count < 0 ? DescribeErrno(errno) : "the socket is full"));
}

Result<Fd> ReceiveDescriptor(int socket, void* bytes, size_t size) {
  iovec part{bytes, size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return Status(StatusCode::kWouldBlock, {});
    return Unavailable(DescribeErrno(errno));
  }
  std::array<Fd, kMaxDescriptors> received;
  size_t descriptors = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here && descriptors < kMaxDescriptors; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received[descriptors++] = Fd(descriptor);
    }
  }
  if (count == 0) return Unavailable("it closed the unix socket");
  if (descriptors == 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    return Status(StatusCode::kResourceExhausted, "cannot take the passed descriptor: " + DescribeErrno(EMFILE));
  }
  if (count != static_cast<ssize_t>(size) || descriptors != 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    return DataLoss("expected " + std::to_string(size) + " bytes and one descriptor, " + std::to_string(count) +
                    " and " + std::to_string(descriptors) + " came");
  }
  return std::move(received[0]);
}

}  // namespace fastdecode
