// The limit of tcp: the same bytes through a bare socket, with blocking calls or polled.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "bench/transport/kind.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace fastdecode::bench {
namespace {

struct Sockets {
  Fd near, far;
};

Sockets ConnectSockets() {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  Sockets sockets;
  sockets.near = DialTcp(LocalAddress(listener.get()).value()).value();
  pollfd fd{listener.get(), POLLIN, 0};
  CHECK_EQ(poll(&fd, 1, 5000), 1);
  sockets.far = std::move(AcceptTcp(listener.get()).value().socket);
  CHECK(TuneStream(sockets.near.get()).ok() && TuneStream(sockets.far.get()).ok());
  return sockets;
}

std::unique_ptr<Endpoint> MakeEndpoint(const EndpointOptions& options, std::array<Fd, kNumLanes> sockets) {
  const size_t bytes = (EndpointMemoryBytes(options) + 4095) / 4096 * 4096;
  std::shared_ptr<std::byte[]> memory(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)),
                                      [](std::byte* pointer) { std::free(pointer); });
  return TcpEndpoint::Create(options, std::move(sockets), std::move(memory)).value();
}

void Await(int socket, short events, Waiting waiting) {
  if (waiting == Waiting::kSpin) return;
  pollfd fd{socket, events, 0};
  poll(&fd, 1, -1);
}

void SendAll(int socket, const std::byte* bytes, size_t size, Waiting waiting) {
  while (size > 0) {
    const ssize_t count = send(socket, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) {
      Await(socket, POLLOUT, waiting);
      continue;
    }
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

void ReceiveAll(int socket, std::byte* bytes, size_t size, Waiting waiting) {
  while (size > 0) {
    const ssize_t count = recv(socket, bytes, size, MSG_DONTWAIT);
    if (count <= 0) {
      Await(socket, POLLIN, waiting);
      continue;
    }
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

class TcpKind final : public Kind {
 public:
  std::string name() const override { return "tcp"; }
  bool in_place() const override { return false; }

  EndpointPair Connect(const EndpointOptions& options) const override {
    std::array<Fd, kNumLanes> near, far;
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      Sockets sockets = ConnectSockets();
      near[lane] = std::move(sockets.near);
      far[lane] = std::move(sockets.far);
    }
    return {MakeEndpoint(options, std::move(near)), MakeEndpoint(options, std::move(far))};
  }

  std::string round_trip_limit(Waiting waiting) const override {
    return waiting == Waiting::kSpin ? "a bare socket, send and recv without end"
                                     : "a bare socket, send, recv, and poll to sleep";
  }

  std::vector<int64_t> BareRoundTrips(size_t bytes, int count, Waiting waiting) const override {
    Sockets sockets = ConnectSockets();
    std::thread far([&, socket = sockets.far.get()] {
      PinFar();
      std::vector<std::byte> buffer(bytes);
      for (int i = 0; i < count; ++i) {
        ReceiveAll(socket, buffer.data(), bytes, waiting);
        SendAll(socket, buffer.data(), bytes, waiting);
      }
    });
    std::vector<std::byte> buffer(bytes), answer(bytes);
    std::vector<int64_t> times(static_cast<size_t>(count));
    for (int64_t& time : times) {
      const int64_t begin = NowNs();
      SendAll(sockets.near.get(), buffer.data(), bytes, waiting);
      ReceiveAll(sockets.near.get(), answer.data(), bytes, waiting);
      time = NowNs() - begin;
    }
    far.join();
    return times;
  }

  std::string bandwidth_limit() const override { return "a bare socket, a send and a recv a message"; }

  int64_t BareStream(size_t bytes, int count, Waiting waiting) const override {
    Sockets sockets = ConnectSockets();
    std::atomic<bool> runs{false};
    std::thread far([&, socket = sockets.far.get()] {
      PinFar();
      std::vector<std::byte> buffer(kSlots * bytes);
      runs.store(true);
      for (int i = 0; i < count; ++i) {
        ReceiveAll(socket, buffer.data() + static_cast<size_t>(i % kSlots) * bytes, bytes, waiting);
      }
      SendAll(socket, buffer.data(), 1, waiting);
    });
    std::vector<std::byte> buffer(kSlots * bytes);
    while (!runs.load()) std::this_thread::yield();
    const int64_t begin = NowNs();
    for (int i = 0; i < count; ++i) {
      SendAll(sockets.near.get(), buffer.data() + static_cast<size_t>(i % kSlots) * bytes, bytes, waiting);
    }
    std::byte last{};
    ReceiveAll(sockets.near.get(), &last, 1, waiting);
    const int64_t time = NowNs() - begin;
    far.join();
    return time;
  }
};

}  // namespace

std::unique_ptr<Kind> MakeTcpKind() { return std::make_unique<TcpKind>(); }

std::vector<std::unique_ptr<Kind>> AllKinds() {
  std::vector<std::unique_ptr<Kind>> kinds;
  kinds.push_back(MakeShmKind());
  kinds.push_back(MakeTcpKind());
  return kinds;
}

}  // namespace fastdecode::bench
