#include "tests/contract/transport/verbs_ends.h"

#include <cstdlib>

#include "common/base/logging.h"
#include "tests/contract/transport/endpoint_pair.h"

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

class CuttableEnd final : public Endpoint {
 public:
  CuttableEnd(std::unique_ptr<VerbsEndpoint> end, std::shared_ptr<VerbsCut> cut)
      : end_(std::move(end)), cut_(std::move(cut)) {
    cut_->Add(end_.get());
  }
  ~CuttableEnd() override { cut_->Remove(end_.get()); }
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
  const std::shared_ptr<VerbsCut> cut_;
};

}  // namespace

bool HasVerbs() { return VerbsDevice::Open(VerbsOptions()).ok(); }

std::unique_ptr<VerbsEndpoint> MakeVerbsEnd(const EndpointOptions& options, int spin_us) {
  Result<std::unique_ptr<VerbsEndpoint>> end =
      VerbsEndpoint::Create(options, Device(), AlignedMemory(EndpointMemoryBytes(options)), spin_us);
  CHECK(end.ok()) << end.status().message();
  return *std::move(end);
}

VerbsHello ParsedHello(std::span<const std::byte> bytes, const EndpointOptions& options) {
  return ParseVerbsHello(bytes, options).value();
}

void VerbsCut::Add(const VerbsEndpoint* end) {
  std::lock_guard lock(mutex_);
  ends_.push_back(end);
}

void VerbsCut::Remove(const VerbsEndpoint* end) {
  std::lock_guard lock(mutex_);
  std::erase(ends_, end);
}

void VerbsCut::Cut() {
  std::lock_guard lock(mutex_);
  for (const VerbsEndpoint* end : ends_) end->FailPairs();
}

std::unique_ptr<Endpoint> MakeCuttable(std::unique_ptr<VerbsEndpoint> end, std::shared_ptr<VerbsCut> cut) {
  return std::make_unique<CuttableEnd>(std::move(end), std::move(cut));
}

}  // namespace fastdecode
