// Pairs over verbs whose ends are on two hosts: one in this process, the other in far_end's.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "common/base/fd.h"
#include "common/base/logging.h"
#include "tests/contract/transport/endpoint_pair.h"
#include "tests/contract/transport/raw_verbs_end.h"
#include "tests/contract/transport/verbs_ends.h"
#include "tests/rdma/far_end.h"

namespace fastdecode {
namespace {

constexpr int kPatienceMs = 60'000;

std::span<const std::byte> BytesOf(const VerbsHello& hello) { return std::as_bytes(std::span(&hello, 1)); }

// The two connections to far_end, made with the first pair.
class FarHost {
 public:
  static FarHost& Get() {
    static FarHost host;
    return host;
  }

  // The answer, which is ok or kWouldBlock or the endpoint's error; its bytes go to where `place` says.
  template <typename Place>
  FarAnswer Call(FarCall call, std::span<const std::byte> bytes, Status* status, const Place& place) {
    call.bytes = static_cast<uint32_t>(bytes.size());
    CHECK(FarWriteBoth(calls_.get(), call, bytes.data(), bytes.size())) << "far_end is gone";
    FarAnswer answer;
    do {  // what rang meanwhile is no news any more
      CHECK(FarRead(calls_.get(), &answer, sizeof(answer))) << "far_end is gone";
    } while (answer.bell);
    if (answer.status == StatusCode::kOk) {
      *status = OkStatus();
      CHECK(FarRead(calls_.get(), place(answer), answer.bytes));
      return answer;
    }
    std::string message(answer.bytes, '\0');
    CHECK(FarRead(calls_.get(), message.data(), answer.bytes));
    *status = Status(answer.status, std::move(message));
    return answer;
  }
  // For calls that are answered without bytes.
  FarAnswer Call(const FarCall& call, Status* status) {
    return Call(call, {}, status, [](const FarAnswer& answer) -> void* {
      CHECK_EQ(answer.bytes, 0U);
      return nullptr;
    });
  }
  // For calls that cannot fail.
  FarAnswer Do(const FarCall& call) {
    Status status;
    const FarAnswer answer = Call(call, &status);
    CHECK(status.ok()) << status.ToString();
    return answer;
  }
  template <typename T>
  T Ask(FarCall::What what, std::span<const std::byte> bytes) {
    T value{};
    Status status;
    Call({.what = what}, bytes, &status, [&](const FarAnswer& answer) -> void* {
      CHECK_EQ(answer.bytes, sizeof(value));
      return &value;
    });
    CHECK(status.ok()) << status.ToString();
    return value;
  }

  void Cut() {
    std::lock_guard lock(mutex_);
    char byte = 1;
    CHECK(FarWrite(cuts_.get(), &byte, 1) && FarRead(cuts_.get(), &byte, 1)) << "far_end is gone";
  }

  int bell() const { return calls_.get(); }

 private:
  FarHost() {
    const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    CHECK_EQ(setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(kFarPort);
    CHECK_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    CHECK_EQ(listen(listener.get(), 2), 0);
    for (Fd* socket : {&calls_, &cuts_}) {
      pollfd fd{listener.get(), POLLIN, 0};
      CHECK_EQ(poll(&fd, 1, kPatienceMs), 1) << "no far_end came to port " << kFarPort;
      *socket = Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      CHECK_EQ(setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
    }
  }

  Fd calls_;
  Fd cuts_;  // under mutex_
  std::mutex mutex_;
};

// The far end as if it were here: its slots are copies of those there.
class FarEndpoint final : public Endpoint {
 public:
  explicit FarEndpoint(const EndpointOptions& options) : options_(options) {
    FarOptions wanted;
    wanted.lanes = options.lanes;
    wanted.incarnation = options.incarnation;
    CHECK_LT(options.peer.copy(wanted.peer, sizeof(wanted.peer) - 1), sizeof(wanted.peer) - 1);
    hello_ = far_.Ask<VerbsHello>(FarCall::What::kCreate, std::as_bytes(std::span(&wanted, 1)));
    for (size_t i = 0; i < kNumLanes; ++i) {
      const auto& [slot_bytes, send_slots, recv_slots] = options.lanes[i];
      send_[i].reset(Allocate(slot_bytes * static_cast<size_t>(send_slots)));
      recv_[i].reset(Allocate(slot_bytes * static_cast<size_t>(recv_slots)));
    }
  }
  ~FarEndpoint() override { far_.Do({.what = FarCall::What::kDestroy}); }

  VerbsHello hello() const { return ParsedHello(hello_, options_); }
  void Connect(const VerbsHello& peer) {
    Status status;
    far_.Call({.what = FarCall::What::kConnect}, BytesOf(peer), &status, [](const FarAnswer&) { return nullptr; });
    CHECK(status.ok()) << status.ToString();
  }

  Result<SendSlot> Acquire(Lane lane) override {
    Status status;
    const FarAnswer answer = far_.Call({.what = FarCall::What::kAcquire, .lane = static_cast<uint32_t>(lane)}, &status);
    if (!status.ok()) return status;
    return SendSlot{lane, answer.index, {Place(send_, lane, answer.index), SlotBytes(lane)}};
  }
  Status Post(const SendSlot& slot) override {
    Status status;
    const size_t bytes = sizeof(MessageHeader) + slot.header()->payload_bytes;
    far_.Call(CallFor(FarCall::What::kPost, slot), slot.bytes.first(bytes), &status,
              [](const FarAnswer&) { return nullptr; });
    return status;
  }
  void Abandon(const SendSlot& slot) override { far_.Do(CallFor(FarCall::What::kAbandon, slot)); }
  Result<RecvSlot> Poll() override {
    Status status;
    const FarAnswer answer = far_.Call({.what = FarCall::What::kPoll}, {}, &status, [this](const FarAnswer& a) {
      CHECK_LE(a.bytes, SlotBytes(static_cast<Lane>(a.lane)));
      return Place(recv_, static_cast<Lane>(a.lane), a.index);
    });
    if (!status.ok()) return status;
    const auto lane = static_cast<Lane>(answer.lane);
    const std::byte* bytes = Place(recv_, lane, answer.index);
    return RecvSlot{
        lane, answer.index, {bytes, answer.bytes}, answer.arrived_ns, reinterpret_cast<const MessageHeader*>(bytes)};
  }
  void Release(const RecvSlot& slot) override { far_.Do(CallFor(FarCall::What::kRelease, slot)); }
  int wait_fd() const override { return far_.bell(); }
  bool PrepareWait() override { return far_.Do({.what = FarCall::What::kPrepareWait}).yes; }
  const EndpointOptions& options() const override { return options_; }
  EndpointStats stats() const override { return far_.Ask<EndpointStats>(FarCall::What::kStats, {}); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Slots = std::array<std::unique_ptr<std::byte, Free>, kNumLanes>;

  static std::byte* Allocate(size_t bytes) { return static_cast<std::byte*>(std::aligned_alloc(64, bytes)); }
  template <typename Slot>
  static FarCall CallFor(FarCall::What what, const Slot& slot) {
    return {.what = what, .lane = static_cast<uint32_t>(slot.lane), .index = slot.index};
  }
  size_t SlotBytes(Lane lane) const { return options_.lanes[static_cast<size_t>(lane)].slot_bytes; }
  std::byte* Place(const Slots& slots, Lane lane, int index) const {
    return slots[static_cast<size_t>(lane)].get() + SlotBytes(lane) * static_cast<size_t>(index);
  }

  FarHost& far_ = FarHost::Get();
  const EndpointOptions options_;
  VerbsHello hello_;
  Slots send_, recv_;
};

class FarRawEnd final : public RawEnd {
 public:
  explicit FarRawEnd(const VerbsHello& peer) : hello_(far_.Ask<VerbsHello>(FarCall::What::kCreateRaw, BytesOf(peer))) {}
  ~FarRawEnd() override { far_.Do({.what = FarCall::What::kDestroyRaw}); }
  const VerbsHello& hello() const { return hello_; }
  bool Write(Lane lane, std::span<const std::byte> bytes) override {
    Status status;
    return far_
        .Call({.what = FarCall::What::kWriteRaw, .lane = static_cast<uint32_t>(lane)}, bytes, &status,
              [](const FarAnswer&) { return nullptr; })
        .yes;
  }

 private:
  FarHost& far_ = FarHost::Get();
  const VerbsHello hello_;
};

struct Ends {
  std::unique_ptr<VerbsEndpoint> here;
  std::unique_ptr<FarEndpoint> far;
};

Ends ConnectEnds(const EndpointOptions& options) {
  Ends ends{MakeVerbsEnd(options), std::make_unique<FarEndpoint>(options)};
  CHECK(ends.here->Connect(ends.far->hello(), 0, 0).ok());
  ends.far->Connect(ends.here->hello());
  return ends;
}

template <bool kFarSends>
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> Connect(const EndpointOptions& options) {
  Ends ends = ConnectEnds(options);
  if (kFarSends) return {std::move(ends.far), std::move(ends.here)};
  return {std::move(ends.here), std::move(ends.far)};
}

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> ConnectToFarRaw(const EndpointOptions& options) {
  std::unique_ptr<VerbsEndpoint> end = MakeVerbsEnd(options);
  auto raw = std::make_unique<FarRawEnd>(end->hello());
  CHECK(end->Connect(raw->hello(), 0, 0).ok());
  return {std::move(end), std::move(raw)};
}

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> ConnectFarToRaw(const EndpointOptions& options) {
  auto end = std::make_unique<FarEndpoint>(options);
  auto raw = std::make_unique<RawVerbsEnd>(end->hello());
  end->Connect(raw->hello());
  return {std::move(end), std::move(raw)};
}

template <bool kFarSends>
CuttablePair ConnectCuttable(const EndpointOptions& options) {
  Ends ends = ConnectEnds(options);
  auto cut = std::make_shared<VerbsCut>();
  CuttablePair pair;
  pair.cut = [cut] {
    cut->Cut();
    FarHost::Get().Cut();
  };
  pair.a = MakeCuttable(std::move(ends.here), cut);
  pair.b = std::move(ends.far);
  if (kFarSends) std::swap(pair.a, pair.b);
  return pair;
}

}  // namespace

std::vector<TransportFactory> Transports() {
  return {{"verbs_to_far_end", Connect<false>, ConnectToFarRaw, ConnectCuttable<false>},
          {"verbs_from_far_end", Connect<true>, ConnectFarToRaw, ConnectCuttable<true>}};
}

}  // namespace fastdecode
