#include "bench/transport/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include "common/transport/tcp/socket.h"

namespace fastdecode::bench {
namespace {

constexpr int kDialMs = 60'000;
constexpr int kAgainMs = 200;

void Await(int socket, short events) {
  pollfd fd{socket, events, 0};
  poll(&fd, 1, -1);
}

}  // namespace

std::pair<Channel, Channel> Channel::Pair() {
  int sockets[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
  return {Channel(Fd(sockets[0]), "127.0.0.1"), Channel(Fd(sockets[1]), "127.0.0.1")};
}

Channel Channel::Listen(const HostPort& address) {
  const Result<Fd> listener = ListenTcp(address);
  CHECK(listener.ok()) << listener.status().message();
  Await(listener->get(), POLLIN);
  return {std::move(AcceptTcp(listener->get()).value().socket), address.host};
}

Channel Channel::Dial(const HostPort& address) {
  const SocketAddress target = ResolveAddress(address).value().front();
  Status status;
  for (int waited_ms = 0; waited_ms < kDialMs; waited_ms += kAgainMs) {
    Result<Fd> socket = DialTcp(target);
    status = socket.status();
    if (status.ok()) {
      Await(socket->get(), POLLOUT);
      status = ConnectResult(socket->get(), address.ToString());
    }
    if (status.ok()) return {*std::move(socket), address.host};
    poll(nullptr, 0, kAgainMs);
  }
  LOG(FATAL) << status.message();
}

void Channel::Send(const void* bytes, size_t size) const {
  for (size_t at = 0; at < size;) {
    const ssize_t count = send(socket_.get(), static_cast<const char*>(bytes) + at, size - at, MSG_NOSIGNAL);
    if (count > 0) {
      at += static_cast<size_t>(count);
    } else {
      CHECK(errno == EAGAIN || errno == EINTR) << "the other end is gone";
      Await(socket_.get(), POLLOUT);
    }
  }
}

bool Channel::Receive(void* bytes, size_t size) const {
  for (size_t at = 0; at < size;) {
    const ssize_t count = recv(socket_.get(), static_cast<char*>(bytes) + at, size - at, 0);
    if (count == 0) return false;
    if (count > 0) {
      at += static_cast<size_t>(count);
    } else {
      if (errno != EAGAIN && errno != EINTR) return false;
      Await(socket_.get(), POLLIN);
    }
  }
  return true;
}

}  // namespace fastdecode::bench
