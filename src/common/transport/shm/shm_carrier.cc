#include "common/transport/shm/shm_carrier.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <list>
#include <optional>
#include <random>

#include "common/base/logging.h"
#include "common/transport/negotiation.h"
#include "common/transport/shm/shm_endpoint.h"
#include "common/transport/shm/unix_socket.h"
#include "common/transport/tcp/client_connection.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr size_t kMaxPending = 8;  // connections to the socket that have not proven the key
constexpr size_t kMaxName = 64;

Status WouldBlock() { return {StatusCode::kWouldBlock, {}}; }

CarrierBytes BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string TextOf(std::span<const std::byte> bytes) {
  return CleanText({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Result<std::string> BootId() {
  const Fd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64] = {};
  const ssize_t count = file.valid() ? read(file.get(), text, sizeof(text) - 1) : -1;
  if (count < 36) return Unavailable("this host does not tell its boot id (/proc/sys/kernel/random/boot_id)");
  return std::string(text, 36);
}

// Nobody needs to be kept from guessing it: who connects must prove the session's key.
std::string RandomName() {
  std::random_device random;
  char text[48];
  std::snprintf(text, sizeof(text), "fastdecode-%08x%08x%08x", random(), random(), random());
  return text;
}

class ShmDialingEnd final : public DialingEnd {
 public:
  ShmDialingEnd(const CarrierContext& context, int spin_us)
      : context_(context),
        spin_us_(spin_us),
        layout_(MakeShmLayout(context.endpoint, MirrorOptions(context.endpoint))) {}

  Result<CarrierBytes> Offer() override {
    FD_ASSIGN_OR_RETURN(const std::string boot_id, BootId());
    FD_ASSIGN_OR_RETURN(memory_, ShmMemory::Create(layout_.bytes));
    return BytesOf(boot_id);
  }

  Status OnAnswer(std::span<const std::byte> answer) override {
    if (answer.empty() || answer.size() > kMaxName) {
      return DataLoss(context_.endpoint.peer + " names a unix socket of " + std::to_string(answer.size()) + " bytes");
    }
    FD_ASSIGN_OR_RETURN(Fd socket, DialUnix(TextOf(answer)));
    connection_.emplace(std::move(socket), context_.session_key, Purpose::kShared, context_.endpoint.incarnation,
                        context_.endpoint.peer, context_.timeout_ms, *context_.clock);
    return OkStatus();
  }

  Result<std::unique_ptr<Endpoint>> Advance() override {
    if (!connection_.has_value()) return WouldBlock();
    if (!passed_) FD_RETURN_IF_ERROR(Pass());
    ShmVerdict verdict;
    const Status status = connection_->channel().Read(verdict);
    if (status.code() == StatusCode::kWouldBlock && context_.clock->NowNs() >= deadline_ns_) {
      return Status(StatusCode::kDeadlineExceeded, context_.endpoint.peer + " does not map the memory within " +
                                                       std::to_string(context_.timeout_ms) + " ms");
    }
    FD_RETURN_IF_ERROR(status);
    if (verdict.magic != ShmVerdict().magic) return DataLoss(context_.endpoint.peer + " answers something else");
    if (verdict.refusal != 0) {
      return Status(StatusCodeOf(static_cast<RefusalCode>(verdict.refusal)),
                    context_.endpoint.peer + ": " + GetText(verdict.text));
    }
    return std::unique_ptr<Endpoint>(ShmEndpoint::Create(context_.endpoint, layout_, ShmSide::kDialer,
                                                         std::move(memory_), connection_->channel().TakeSocket(),
                                                         spin_us_, *context_.clock));
  }

  void AppendWants(std::vector<pollfd>* fds) const override {
    if (connection_.has_value()) fds->push_back(connection_->wants());
  }

  int64_t deadline_ns() const override {
    if (passed_) return deadline_ns_;
    return connection_.has_value() ? connection_->deadline_ns() : std::numeric_limits<int64_t>::max();
  }

 private:
  // Once the R-worker has proven the key, it gets the memory.
  Status Pass() {
    FD_RETURN_IF_ERROR(connection_->Advance());
    ShmPass pass;
    pass.bytes = layout_.bytes;
    FD_RETURN_IF_ERROR(SendDescriptor(connection_->channel().fd(), &pass, sizeof(pass), memory_.descriptor()));
    deadline_ns_ = context_.clock->NowNs() + context_.timeout_ms * kNsPerMs;
    passed_ = true;
    return OkStatus();
  }

  const CarrierContext context_;
  const int spin_us_;
  const ShmLayout layout_;
  ShmMemory memory_;
  std::optional<ClientConnection> connection_;
  bool passed_ = false;
  int64_t deadline_ns_ = 0;
};

class ShmAcceptingEnd final : public AcceptingEnd {
 public:
  ShmAcceptingEnd(const CarrierContext& context, int spin_us)
      : context_(context),
        spin_us_(spin_us),
        layout_(MakeShmLayout(MirrorOptions(context.endpoint), context.endpoint)) {}

  Result<CarrierBytes> Answer(std::span<const std::byte> offer) override {
    FD_ASSIGN_OR_RETURN(const std::string boot_id, BootId());
    if (TextOf(offer) != boot_id) {
      return Status(StatusCode::kUnimplemented, "it is on another host, or in another virtual machine");
    }
    const std::string name = RandomName();
    FD_ASSIGN_OR_RETURN(listener_, ListenUnix(name));
    return BytesOf(name);
  }

  // Strangers that come to the socket are dropped without a word; none of them ends this.
  Result<std::unique_ptr<Endpoint>> Advance() override {
    Accept();
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      Status status = Prove(*guest);
      if (status.ok()) return Receive(*guest);
      const bool waits = status.code() == StatusCode::kWouldBlock;
      if (!waits) VLOG(1) << "shared memory's socket: dropped a connection: " << status.message();
      guest = waits ? std::next(guest) : guests_.erase(guest);
    }
    return WouldBlock();
  }

  void AppendWants(std::vector<pollfd>* fds) const override {
    fds->push_back({listener_.get(), POLLIN, 0});
    for (const Guest& guest : guests_) fds->push_back({guest.channel.fd(), POLLIN, 0});
  }

 private:
  // Somebody who connected: the handshake's steps up to the passing of the memory.
  struct Guest {
    explicit Guest(Fd socket) : channel(std::move(socket), "a connection") {}
    enum class State { kHello, kProof, kProven } state = State::kHello;
    ByteChannel channel;
    ServerHandshake handshake;
  };

  void Accept() {
    while (true) {
      Result<Fd> socket = AcceptUnix(listener_.get());
      if (!socket.ok()) return;
      if (guests_.size() == kMaxPending) guests_.pop_front();
      guests_.emplace_back(*std::move(socket));
    }
  }

  // Ok: it knows the key, and a descriptor or the connection's end is there.
  Status Prove(Guest& guest) {
    if (guest.state == Guest::State::kHello) {
      Hello hello;
      FD_RETURN_IF_ERROR(guest.channel.Read(hello));
      FD_ASSIGN_OR_RETURN(const Reply challenge, guest.handshake.OnHello(hello));
      if (guest.handshake.purpose() != Purpose::kShared || hello.incarnation != context_.endpoint.incarnation) {
        return InvalidArgument("it comes for something else");
      }
      FD_RETURN_IF_ERROR(guest.channel.Write(challenge));
      guest.state = Guest::State::kProof;
    }
    if (guest.state == Guest::State::kProof) {
      Proof proof;
      FD_RETURN_IF_ERROR(guest.channel.Read(proof));
      FD_ASSIGN_OR_RETURN(const Reply accepted, guest.handshake.OnProof(context_.session_key, proof));
      FD_RETURN_IF_ERROR(guest.channel.Write(accepted));
      guest.state = Guest::State::kProven;
    }
    pollfd fd{guest.channel.fd(), POLLIN, 0};
    return poll(&fd, 1, 0) == 1 ? OkStatus() : WouldBlock();
  }

  Result<std::unique_ptr<Endpoint>> Receive(Guest& guest) {
    Result<ShmMemory> memory = Map(guest.channel.fd());
    ShmVerdict verdict;
    if (!memory.ok()) {
      verdict.refusal = static_cast<uint32_t>(RefusalCodeOf(memory.status().code()));
      SetText(verdict.text, memory.status().message());
      (void)guest.channel.Write(verdict);
      return memory.status();
    }
    FD_RETURN_IF_ERROR(guest.channel.Write(verdict));
    return std::unique_ptr<Endpoint>(ShmEndpoint::Create(context_.endpoint, layout_, ShmSide::kAccepter,
                                                         *std::move(memory), guest.channel.TakeSocket(), spin_us_,
                                                         *context_.clock));
  }

  Result<ShmMemory> Map(int socket) const {
    ShmPass pass;
    FD_ASSIGN_OR_RETURN(Fd descriptor, ReceiveDescriptor(socket, &pass, sizeof(pass)));
    if (pass.magic != ShmPass().magic || pass.bytes != layout_.bytes) {
      return DataLoss("the S-worker passes shared memory of " + std::to_string(pass.bytes) + " bytes, expected " +
                      std::to_string(layout_.bytes));
    }
    return ShmMemory::Adopt(std::move(descriptor), layout_.bytes);
  }

  const CarrierContext context_;
  const int spin_us_;
  const ShmLayout layout_;
  Fd listener_;
  std::list<Guest> guests_;
};

class ShmCarrier final : public Carrier {
 public:
  explicit ShmCarrier(int spin_us) : spin_us_(spin_us) {}
  TransportKind kind() const override { return TransportKind::kShm; }
  Status Available() const override { return OkStatus(); }
  std::unique_ptr<DialingEnd> Dial(const CarrierContext& context) const override {
    return std::make_unique<ShmDialingEnd>(context, spin_us_);
  }
  std::unique_ptr<AcceptingEnd> Accept(const CarrierContext& context) const override {
    return std::make_unique<ShmAcceptingEnd>(context, spin_us_);
  }

 private:
  const int spin_us_;
};

}  // namespace

std::unique_ptr<Carrier> MakeShmCarrier(const TransportSettings& settings) {
  return std::make_unique<ShmCarrier>(settings.spin_us);
}

}  // namespace fastdecode
