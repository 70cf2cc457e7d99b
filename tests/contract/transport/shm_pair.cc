#include <sys/socket.h>

#include <cstring>

#include "common/base/logging.h"
#include "common/transport/shm/shm_endpoint.h"
#include "tests/contract/transport/endpoint_pair.h"

namespace fastdecode {
namespace {

struct Shared {
  ShmLayout layout;
  ShmMemory memory[2];
  Fd sockets[2];
};

Shared Share(const EndpointOptions& options) {
  Shared shared;
  shared.layout = MakeShmLayout(options, options);
  shared.memory[0] = ShmMemory::Create(shared.layout.bytes).value();
  shared.memory[1] = ShmMemory::Adopt(Fd(dup(shared.memory[0].descriptor())), shared.layout.bytes).value();
  int sockets[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
  for (size_t i = 0; i < 2; ++i) shared.sockets[i] = Fd(sockets[i]);
  return shared;
}

// Posts whatever it is told to, as a peer that keeps no rule might.
class RawShmEnd final : public RawEnd {
 public:
  RawShmEnd(const ShmLayout& layout, ShmMemory memory, Fd socket)
      : layout_(layout), memory_(std::move(memory)), socket_(std::move(socket)) {}

  bool Write(Lane lane, std::span<const std::byte> bytes) override {
    const ShmLaneLayout& ring = layout_.lanes[1][static_cast<size_t>(lane)];
    const size_t at = posted_[static_cast<size_t>(lane)]++;
    if (bytes.size() > ring.slot_bytes || at >= static_cast<size_t>(ring.slots)) return false;
    std::memcpy(memory_.data() + ring.slots_offset + at * ring.slot_bytes, bytes.data(), bytes.size());
    auto* words = reinterpret_cast<PostedWord*>(memory_.data() + ring.posted_offset);
    words[at].store(PackPosted(static_cast<uint32_t>(at), static_cast<uint32_t>(bytes.size()), 1));
    const char wake = 1;
    return send(socket_.get(), &wake, 1, MSG_NOSIGNAL) == 1;
  }

 private:
  const ShmLayout layout_;
  ShmMemory memory_;
  Fd socket_;
  std::array<size_t, kNumLanes> posted_{};
};

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> Connect(const EndpointOptions& options) {
  Shared s = Share(options);
  auto a = ShmEndpoint::Create(options, s.layout, ShmSide::kDialer, std::move(s.memory[0]), std::move(s.sockets[0]), 0);
  auto b =
      ShmEndpoint::Create(options, s.layout, ShmSide::kAccepter, std::move(s.memory[1]), std::move(s.sockets[1]), 0);
  return {std::move(a), std::move(b)};
}

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> ConnectRaw(const EndpointOptions& options) {
  Shared s = Share(options);
  auto a = ShmEndpoint::Create(options, s.layout, ShmSide::kDialer, std::move(s.memory[0]), std::move(s.sockets[0]), 0);
  return {std::move(a), std::make_unique<RawShmEnd>(s.layout, std::move(s.memory[1]), std::move(s.sockets[1]))};
}

CuttablePair ConnectCuttable(const EndpointOptions& options) {
  Shared s = Share(options);
  CuttablePair pair;
  auto end = std::make_shared<Fd>(dup(s.sockets[0].get()));
  pair.cut = [end] { shutdown(end->get(), SHUT_RDWR); };
  pair.a = ShmEndpoint::Create(options, s.layout, ShmSide::kDialer, std::move(s.memory[0]), std::move(s.sockets[0]), 0);
  pair.b =
      ShmEndpoint::Create(options, s.layout, ShmSide::kAccepter, std::move(s.memory[1]), std::move(s.sockets[1]), 0);
  return pair;
}

}  // namespace

TransportFactory ShmFactory() { return {"shm", Connect, ConnectRaw, ConnectCuttable}; }

}  // namespace fastdecode
