// The limit of tcp: the same bytes through a bare socket, with blocking calls or polled.
#include <poll.h>
#include <sys/socket.h>

#include "bench/transport/kind.h"
#include "common/base/clock.h"
#include "common/transport/carrier.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace fastdecode::bench {
namespace {

void AwaitOnce(int socket, short events) {
  pollfd fd{socket, events, 0};
  CHECK_EQ(poll(&fd, 1, 5000), 1);
}

// far listens and tells where.
Fd ConnectSockets(Side side, const Channel& channel) {
  Fd socket;
  if (side == Side::kFar) {
    Fd listener = ListenTcp({channel.host(), 0}).value();
    channel.Put(LocalAddress(listener.get()).value());
    AwaitOnce(listener.get(), POLLIN);
    socket = std::move(AcceptTcp(listener.get()).value().socket);
  } else {
    socket = DialTcp(channel.Take<SocketAddress>()).value();
    AwaitOnce(socket.get(), POLLOUT);
    CHECK(ConnectResult(socket.get(), "the other end").ok());
  }
  CHECK(TuneStream(socket.get()).ok());
  return socket;
}

class TcpBare final : public Bare {
 public:
  TcpBare(const Work& work, Fd socket)
      : work_(work), socket_(std::move(socket)), out_(static_cast<size_t>(work.slots) * work.bytes), in_(out_.size()) {}

  std::vector<int64_t> RoundTrips(int count) override {
    std::vector<int64_t> times(static_cast<size_t>(count));
    for (int64_t& time : times) {
      const int64_t begin = NowNs();
      SendAll(out_.data(), work_.bytes);
      ReceiveAll(in_.data(), work_.bytes);
      time = NowNs() - begin;
    }
    return times;
  }

  void Echo(int count) override {
    for (int i = 0; i < count; ++i) {
      ReceiveAll(in_.data(), work_.bytes);
      SendAll(in_.data(), work_.bytes);
    }
  }

  int64_t Stream(int count) override {
    const int64_t begin = NowNs();
    for (int i = 0; i < count; ++i) SendAll(Slot(out_, i), work_.bytes);
    ReceiveAll(in_.data(), 1);
    return NowNs() - begin;
  }

  void Drain(int count) override {
    for (int i = 0; i < count; ++i) ReceiveAll(Slot(in_, i), work_.bytes);
    SendAll(out_.data(), 1);
  }

 private:
  std::byte* Slot(std::vector<std::byte>& ring, int i) const {
    return ring.data() + static_cast<size_t>(i % work_.slots) * work_.bytes;
  }

  void Await(short events) const {
    if (work_.waiting == Waiting::kSpin) return;
    pollfd fd{socket_.get(), events, 0};
    poll(&fd, 1, -1);
  }

  void SendAll(const std::byte* bytes, size_t size) const {
    while (size > 0) {
      const ssize_t count = send(socket_.get(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count <= 0) {
        Await(POLLOUT);
        continue;
      }
      bytes += count;
      size -= static_cast<size_t>(count);
    }
  }

  void ReceiveAll(std::byte* bytes, size_t size) const {
    while (size > 0) {
      const ssize_t count = recv(socket_.get(), bytes, size, MSG_DONTWAIT);
      if (count <= 0) {
        Await(POLLIN);
        continue;
      }
      bytes += count;
      size -= static_cast<size_t>(count);
    }
  }

  const Work work_;
  const Fd socket_;
  std::vector<std::byte> out_, in_;
};

class TcpKind final : public Kind {
 public:
  std::string name() const override { return "tcp"; }
  bool in_place() const override { return false; }
  Status Available(bool) const override { return OkStatus(); }

  std::unique_ptr<Endpoint> Connect(const EndpointOptions& options, Side side, const Channel& channel) const override {
    std::array<Fd, kNumLanes> sockets;
    for (Fd& socket : sockets) socket = ConnectSockets(side, channel);
    return TcpEndpoint::Create(options, std::move(sockets), AllocatePageableSlots(EndpointMemoryBytes(options)))
        .value();
  }

  std::unique_ptr<Bare> ConnectBare(const Work& work, Side side, const Channel& channel) const override {
    return std::make_unique<TcpBare>(work, ConnectSockets(side, channel));
  }

  std::string round_trip_limit(Waiting waiting) const override {
    return waiting == Waiting::kSpin ? "a bare socket, send and recv without end"
                                     : "a bare socket, send, recv, and poll to sleep";
  }
  std::string bandwidth_limit() const override { return "a bare socket, a send and a recv a message"; }
};

}  // namespace

std::unique_ptr<Kind> MakeTcpKind() { return std::make_unique<TcpKind>(); }

}  // namespace fastdecode::bench
