// Two endpoints on this host's own RDMA device.
#include <mutex>
#include <vector>

#include "common/base/logging.h"
#include "common/transport/verbs/verbs_endpoint.h"
#include "tests/contract/transport/endpoint_pair.h"
#include "tests/contract/transport/raw_verbs_end.h"

namespace fastdecode {
namespace {

std::shared_ptr<const VerbsDevice> Device() {
  Result<std::shared_ptr<const VerbsDevice>> device = VerbsDevice::Open(VerbsOptions());
  CHECK(device.ok()) << device.status().message();
  return *device;
}

std::shared_ptr<std::byte[]> AlignedMemory(size_t bytes) {
  return {static_cast<std::byte*>(std::aligned_alloc(64, bytes)), [](std::byte* pointer) { std::free(pointer); }};
}

std::unique_ptr<VerbsEndpoint> MakeEnd(const EndpointOptions& options, int spin_us) {
  Result<std::unique_ptr<VerbsEndpoint>> end =
      VerbsEndpoint::Create(options, Device(), AlignedMemory(EndpointMemoryBytes(options)), spin_us);
  CHECK(end.ok()) << end.status().message();
  return *std::move(end);
}

// As the hello would come from the other end.
VerbsHello Parsed(const VerbsHello& hello, const EndpointOptions& options) {
  return ParseVerbsHello(std::as_bytes(std::span(&hello, 1)), options).value();
}

struct Ends {
  std::unique_ptr<VerbsEndpoint> a, b;
};

Ends ConnectEnds(const EndpointOptions& options, int spin_us) {
  Ends ends{MakeEnd(options, spin_us), MakeEnd(options, spin_us)};
  CHECK(ends.a->Connect(Parsed(ends.b->hello(), options), 0, 0).ok());
  CHECK(ends.b->Connect(Parsed(ends.a->hello(), options), 0, 0).ok());
  return ends;
}

template <int kSpinUs>
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> Connect(const EndpointOptions& options) {
  Ends ends = ConnectEnds(options, kSpinUs);
  return {std::move(ends.a), std::move(ends.b)};
}

template <int kSpinUs>
std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> ConnectRaw(const EndpointOptions& options) {
  std::unique_ptr<VerbsEndpoint> end = MakeEnd(options, kSpinUs);
  auto raw = std::make_unique<RawVerbsEnd>(end->hello());
  CHECK(end->Connect(raw->hello(), 0, 0).ok());
  return {std::move(end), std::move(raw)};
}

// Those of a pair that still live: the one that is cut may outlive the other.
struct Living {
  std::mutex mutex;
  std::vector<const VerbsEndpoint*> ends;  // under mutex
};

class LivingEnd final : public Endpoint {
 public:
  LivingEnd(std::unique_ptr<VerbsEndpoint> end, std::shared_ptr<Living> living)
      : end_(std::move(end)), living_(std::move(living)) {
    living_->ends.push_back(end_.get());
  }
  ~LivingEnd() override {
    std::lock_guard lock(living_->mutex);
    std::erase(living_->ends, end_.get());
  }
  Result<SendSlot> Acquire(Lane lane) override { return end_->Acquire(lane); }
  Status Post(const SendSlot& slot) override { return end_->Post(slot); }
  void Abandon(const SendSlot& slot) override { end_->Abandon(slot); }
  Result<RecvSlot> Poll() override { return end_->Poll(); }
  void Release(const RecvSlot& slot) override { end_->Release(slot); }
  int wait_fd() const override { return end_->wait_fd(); }
  bool PrepareWait() override { return end_->PrepareWait(); }
  const EndpointOptions& options() const override { return end_->options(); }
  EndpointStats stats() const override { return end_->stats(); }

 private:
  const std::unique_ptr<VerbsEndpoint> end_;
  const std::shared_ptr<Living> living_;
};

template <int kSpinUs>
CuttablePair ConnectCuttable(const EndpointOptions& options) {
  Ends ends = ConnectEnds(options, kSpinUs);
  auto living = std::make_shared<Living>();
  const auto cut = [living] {
    std::lock_guard lock(living->mutex);
    for (const VerbsEndpoint* end : living->ends) end->FailPairs();
  };
  return {std::make_unique<LivingEnd>(std::move(ends.a), living),
          std::make_unique<LivingEnd>(std::move(ends.b), living), cut};
}

template <int kSpinUs>
TransportFactory Factory(const char* name) {
  return {name, Connect<kSpinUs>, ConnectRaw<kSpinUs>, ConnectCuttable<kSpinUs>};
}

}  // namespace

bool HasVerbs() { return VerbsDevice::Open(VerbsOptions()).ok(); }

TransportFactory VerbsFactory() { return Factory<0>("verbs"); }
TransportFactory VerbsSpinningFactory() { return Factory<50>("verbs_spinning"); }

}  // namespace fastdecode
