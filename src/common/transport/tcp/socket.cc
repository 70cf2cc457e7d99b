#include "common/transport/tcp/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace fastdecode {
namespace {

constexpr int kBacklog = 128;

bool SetOption(int socket, int level, int name, int value) {
  return setsockopt(socket, level, name, &value, sizeof(value)) == 0;
}

Result<Fd> OpenSocket(const SocketAddress& address) {
  Fd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Unavailable("cannot open a socket: " + DescribeErrno(errno));
  return socket;
}

Result<Fd> ListenOn(const SocketAddress& address) {
  FD_ASSIGN_OR_RETURN(Fd socket, OpenSocket(address));
  SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(socket.get(), address.get(), address.length) != 0 || listen(socket.get(), kBacklog) != 0) {
    return Unavailable("cannot listen on " + ToString(address) + ": " + DescribeErrno(errno));
  }
  return socket;
}

}  // namespace

std::string DescribeErrno(int error) {
  switch (error) {
    case ECONNREFUSED:
      return "connection refused: nothing listens there";
    case ECONNRESET:
    case EPIPE:
      return "connection reset: the process at the other end died or closed it";
    case ETIMEDOUT:
      return "timed out: the other end does not acknowledge what is sent";
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "no route to the host";
    case EADDRINUSE:
      return "the port is in use by another process";
    case EADDRNOTAVAIL:
      return "no interface of this host has that address";
    case EACCES:
      return "not permitted (ports below 1024 need privileges)";
    case EMFILE:
    case ENFILE:
      return "too many open files (raise the limit: ulimit -n)";
    default:
      return std::strerror(error);
  }
}

Result<Fd> ListenTcp(const HostPort& host_port) {
  FD_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, ResolveAddress(host_port));
  Status status;
  for (const SocketAddress& address : addresses) {
    Result<Fd> socket = ListenOn(address);
    if (socket.ok()) return socket;
    if (status.ok()) status = socket.status();
  }
  return status;
}

Result<Accepted> AcceptTcp(int listener) {
  Accepted accepted;
  accepted.peer.length = sizeof(accepted.peer.storage);
  accepted.socket = Fd(accept4(listener, accepted.peer.get(), &accepted.peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.socket.valid()) return accepted;
  // Errors of the waiting connection itself come out of accept, too: the next one may be fine.
  bool descriptors = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  if (descriptors) return Status(StatusCode::kResourceExhausted, "cannot accept: " + DescribeErrno(errno));
  return Status(StatusCode::kWouldBlock, "");
}

Result<Fd> DialTcp(const SocketAddress& address) {
  FD_ASSIGN_OR_RETURN(Fd socket, OpenSocket(address));
  if (connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return Unavailable("cannot connect to " + ToString(address) + ": " + DescribeErrno(errno));
  }
  return socket;
}

Status ConnectResult(int socket, const std::string& peer) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return OkStatus();
  return Unavailable("cannot connect to " + peer + ": " + DescribeErrno(error));
}

Status TuneControl(int socket, int timeout_ms) {
  int idle_s = std::max(1, timeout_ms / 2000);
  bool ok = SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1) &&
            SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms) &&
            SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1) && SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, idle_s) &&
            SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1) && SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  return ok ? OkStatus() : Unavailable("cannot set up a TCP socket: " + DescribeErrno(errno));
}

Status TuneStream(int socket) {
  // SO_SNDBUF and SO_RCVBUF stay alone: setting them ends the kernel's own tuning, which
  // goes further (tcp_rmem, tcp_wmem) than an unprivileged process may ask for.
  bool ok = SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1) && SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  return ok ? OkStatus() : Unavailable("cannot set up a TCP socket: " + DescribeErrno(errno));
}

Result<SocketAddress> LocalAddress(int socket) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(socket, address.get(), &address.length) != 0) {
    return Unavailable("cannot read a socket's address: " + DescribeErrno(errno));
  }
  return address;
}

}  // namespace fastdecode
