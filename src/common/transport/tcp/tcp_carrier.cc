#include "common/transport/tcp/tcp_carrier.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/transport/in_background.h"
#include "common/transport/tcp/client_connection.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_endpoint.h"

namespace fastdecode {
namespace {

constexpr std::array<Purpose, kNumLanes> kPurposes = {Purpose::kDecode, Purpose::kBulk};

Status NoBytesExpected(std::span<const std::byte> bytes) {
  if (bytes.empty()) return OkStatus();
  return DataLoss("tcp: " + std::to_string(bytes.size()) + " bytes of a handshake that has none");
}

Result<std::unique_ptr<Endpoint>> MakeEndpoint(const CarrierContext& context, std::array<Fd, kNumLanes> sockets,
                                               std::shared_ptr<std::byte[]> memory) {
  for (const Fd& socket : sockets) FD_RETURN_IF_ERROR(TuneStream(socket.get()));
  FD_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> endpoint,
                      TcpEndpoint::Create(context.endpoint, std::move(sockets), std::move(memory), *context.clock));
  return endpoint;
}

class TcpDialingEnd final : public DialingEnd {
 public:
  explicit TcpDialingEnd(const CarrierContext& context) : context_(context) {}

  Result<CarrierBytes> Offer() override {
    if (!making_.has_value()) making_.emplace([this] { return MakeSlots(context_); });
    FD_ASSIGN_OR_RETURN(memory_, making_->Take());
    return CarrierBytes();
  }

  Status OnAnswer(std::span<const std::byte> answer) override {
    FD_RETURN_IF_ERROR(NoBytesExpected(answer));
    for (size_t i = 0; i < kNumLanes; ++i) {
      streams_[i].emplace(context_.addresses, context_.session_key, kPurposes[i], context_.endpoint.incarnation,
                          context_.endpoint.peer, context_.timeout_ms, *context_.clock);
    }
    return OkStatus();
  }

  Result<std::unique_ptr<Endpoint>> Advance() override {
    Status waits;
    for (auto& stream : streams_) {
      Status status = stream.has_value() ? stream->Advance() : Status(StatusCode::kWouldBlock, {});
      // The other stream may go on meanwhile.
      if (status.code() == StatusCode::kWouldBlock) {
        waits = std::move(status);
      } else if (!status.ok()) {
        return status;
      }
    }
    if (!waits.ok()) return waits;
    std::array<Fd, kNumLanes> sockets;
    for (size_t i = 0; i < kNumLanes; ++i) {
      sockets[i] = streams_[i]->channel().TakeSocket();
      streams_[i].reset();
    }
    return MakeEndpoint(context_, std::move(sockets), std::move(memory_));
  }

  void AppendWants(std::vector<pollfd>* fds) const override {
    if (memory_ == nullptr && making_.has_value()) making_->AppendWants(fds);
    for (const auto& stream : streams_) {
      if (stream.has_value()) fds->push_back(stream->wants());
    }
  }

  int64_t deadline_ns() const override {
    int64_t deadline = std::numeric_limits<int64_t>::max();
    for (const auto& stream : streams_) {
      if (stream.has_value()) deadline = std::min(deadline, stream->deadline_ns());
    }
    return deadline;
  }

  bool busy() const override { return making_.has_value() && making_->busy(); }

 private:
  const CarrierContext context_;
  std::shared_ptr<std::byte[]> memory_;
  std::array<std::optional<ClientConnection>, kNumLanes> streams_;
  std::optional<InBackground<std::shared_ptr<std::byte[]>>> making_;
};

class TcpAcceptingEnd final : public AcceptingEnd {
 public:
  explicit TcpAcceptingEnd(const CarrierContext& context) : context_(context) {}

  Result<CarrierBytes> Answer(std::span<const std::byte> offer) override {
    FD_RETURN_IF_ERROR(NoBytesExpected(offer));
    return CarrierBytes();
  }

  bool WantsStream(Lane lane) const override { return !sockets_[static_cast<size_t>(lane)].valid(); }
  void TakeStream(Lane lane, Fd socket) override { sockets_[static_cast<size_t>(lane)] = std::move(socket); }

  Result<std::unique_ptr<Endpoint>> Advance() override {
    for (const Fd& socket : sockets_) {
      if (!socket.valid()) return Status(StatusCode::kWouldBlock, {});
    }
    FD_ASSIGN_OR_RETURN(std::shared_ptr<std::byte[]> memory, MakeSlots(context_));
    return MakeEndpoint(context_, std::move(sockets_), std::move(memory));
  }

  void AppendWants(std::vector<pollfd>*) const override {}  // streams come through the R-worker's port

 private:
  const CarrierContext context_;
  std::array<Fd, kNumLanes> sockets_;
};

class TcpCarrier final : public Carrier {
 public:
  TransportKind kind() const override { return TransportKind::kTcp; }
  Status Available() const override { return OkStatus(); }
  std::unique_ptr<DialingEnd> Dial(const CarrierContext& context) const override {
    return std::make_unique<TcpDialingEnd>(context);
  }
  std::unique_ptr<AcceptingEnd> Accept(const CarrierContext& context) const override {
    return std::make_unique<TcpAcceptingEnd>(context);
  }
};

}  // namespace

std::unique_ptr<Carrier> MakeTcpCarrier() { return std::make_unique<TcpCarrier>(); }

}  // namespace fastdecode
