#include <poll.h>
#include <sys/socket.h>

#include "common/base/logging.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"
#include "tests/contract/transport/endpoint_pair.h"

namespace fastdecode {
namespace {

struct SocketPair {
  Fd a, b;
};

SocketPair ConnectOnce(int listener, const SocketAddress& address) {
  SocketPair pair;
  pair.a = DialTcp(address).value();
  pollfd fd{listener, POLLIN, 0};
  CHECK_EQ(poll(&fd, 1, 5000), 1);
  pair.b = std::move(AcceptTcp(listener).value().socket);
  CHECK(TuneStream(pair.a.get()).ok() && TuneStream(pair.b.get()).ok());
  return pair;
}

struct FourSockets {
  std::array<Fd, kNumLanes> a, b;
};

FourSockets ConnectLanes() {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  SocketAddress address = LocalAddress(listener.get()).value();
  FourSockets sockets;
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    SocketPair pair = ConnectOnce(listener.get(), address);
    sockets.a[lane] = std::move(pair.a);
    sockets.b[lane] = std::move(pair.b);
  }
  return sockets;
}

std::unique_ptr<Endpoint> MakeEndpoint(const EndpointOptions& options, std::array<Fd, kNumLanes> sockets) {
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(64, EndpointMemoryBytes(options)));
  std::shared_ptr<std::byte[]> memory(bytes, [](std::byte* pointer) { std::free(pointer); });
  return TcpEndpoint::Create(options, std::move(sockets), std::move(memory)).value();
}

class RawTcpEnd final : public RawEnd {
 public:
  explicit RawTcpEnd(std::array<Fd, kNumLanes> sockets) : sockets_(std::move(sockets)) {}
  bool Write(Lane lane, std::span<const std::byte> bytes) override {
    int socket = sockets_[static_cast<size_t>(lane)].get();
    return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

 private:
  std::array<Fd, kNumLanes> sockets_;
};

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> Connect(const EndpointOptions& options) {
  FourSockets sockets = ConnectLanes();
  return {MakeEndpoint(options, std::move(sockets.a)), MakeEndpoint(options, std::move(sockets.b))};
}

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> ConnectRaw(const EndpointOptions& options) {
  FourSockets sockets = ConnectLanes();
  return {MakeEndpoint(options, std::move(sockets.a)), std::make_unique<RawTcpEnd>(std::move(sockets.b))};
}

CuttablePair ConnectCuttable(const EndpointOptions& options) {
  FourSockets sockets = ConnectLanes();
  CuttablePair pair;
  auto ends = std::make_shared<std::array<Fd, kNumLanes>>();
  for (size_t lane = 0; lane < kNumLanes; ++lane) (*ends)[lane] = Fd(dup(sockets.a[lane].get()));
  pair.cut = [ends] {
    for (const Fd& end : *ends) shutdown(end.get(), SHUT_RDWR);
  };
  pair.a = MakeEndpoint(options, std::move(sockets.a));
  pair.b = MakeEndpoint(options, std::move(sockets.b));
  return pair;
}

}  // namespace

TransportFactory TcpFactory() { return {"tcp", Connect, ConnectRaw, ConnectCuttable}; }

}  // namespace fastdecode
