#include "common/transport/verbs/verbs_carrier.h"

#include <mutex>
#include <optional>

#include "common/base/logging.h"
#include "common/transport/in_background.h"
#include "common/transport/verbs/verbs_device.h"
#include "common/transport/verbs/verbs_endpoint.h"

namespace fastdecode {
namespace {

// The process's device: opened by the first who needs it, closed with the last endpoint, so
// that one which was unplugged and came back is opened anew.
class DeviceHolder {
 public:
  explicit DeviceHolder(const TransportSettings& settings) : options_(settings.verbs), spin_us_(settings.spin_us) {}

  Result<std::shared_ptr<const VerbsDevice>> Get() {
    std::lock_guard lock(mutex_);
    std::shared_ptr<const VerbsDevice> device = device_.lock();
    if (device != nullptr && device->PortIsActive()) return device;
    FD_ASSIGN_OR_RETURN(device, VerbsDevice::Open(options_));
    device_ = device;
    const std::string text = device->Describe();
    if (text != described_) LOG(INFO) << "RDMA device " << text;
    described_ = text;
    return device;
  }
  const VerbsOptions& options() const { return options_; }
  int spin_us() const { return spin_us_; }

 private:
  const VerbsOptions options_;
  const int spin_us_;
  std::mutex mutex_;
  std::weak_ptr<const VerbsDevice> device_;  // under mutex_
  std::string described_;                    // under mutex_
};

using EndInBackground = InBackground<std::unique_ptr<VerbsEndpoint>>;

Result<std::unique_ptr<VerbsEndpoint>> MakeEnd(const CarrierContext& context, DeviceHolder* holder) {
  FD_ASSIGN_OR_RETURN(std::shared_ptr<const VerbsDevice> device, holder->Get());
  FD_ASSIGN_OR_RETURN(std::shared_ptr<std::byte[]> memory, MakeSlots(context));
  return VerbsEndpoint::Create(context.endpoint, std::move(device), std::move(memory), holder->spin_us(),
                               *context.clock);
}

CarrierBytes BytesOf(const VerbsHello& hello) {
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  return {bytes.begin(), bytes.end()};
}

class VerbsDialingEnd final : public DialingEnd {
 public:
  VerbsDialingEnd(const CarrierContext& context, std::shared_ptr<DeviceHolder> holder)
      : context_(context), holder_(std::move(holder)) {}

  Result<CarrierBytes> Offer() override {
    if (!making_.has_value()) making_.emplace([this] { return MakeEnd(context_, holder_.get()); });
    FD_ASSIGN_OR_RETURN(endpoint_, making_->Take());
    VerbsHello hello = endpoint_->hello();
    hello.service_level = service_level();
    hello.traffic_class = traffic_class();
    return BytesOf(hello);
  }

  Status OnAnswer(std::span<const std::byte> answer) override {
    FD_ASSIGN_OR_RETURN(const VerbsHello peer, ParseVerbsHello(answer, context_.endpoint));
    FD_RETURN_IF_ERROR(endpoint_->Connect(peer, service_level(), traffic_class()));
    connected_ = true;
    return OkStatus();
  }

  Result<std::unique_ptr<Endpoint>> Advance() override {
    if (!connected_) return Status(StatusCode::kWouldBlock, {});
    FD_RETURN_IF_ERROR(endpoint_->CheckPath());
    return std::unique_ptr<Endpoint>(std::move(endpoint_));
  }

  // What nobody acknowledges, the device itself gives up: no deadline is needed.
  void AppendWants(std::vector<pollfd>* fds) const override {
    if (connected_) {
      fds->push_back({endpoint_->wait_fd(), POLLIN, 0});
    } else if (endpoint_ == nullptr && making_.has_value()) {
      making_->AppendWants(fds);
    }
  }
  bool busy() const override { return making_.has_value() && making_->busy(); }

 private:
  uint8_t service_level() const { return static_cast<uint8_t>(holder_->options().service_level); }
  uint8_t traffic_class() const { return static_cast<uint8_t>(holder_->options().traffic_class); }

  const CarrierContext context_;
  const std::shared_ptr<DeviceHolder> holder_;
  std::unique_ptr<VerbsEndpoint> endpoint_;
  bool connected_ = false;
  std::optional<EndInBackground> making_;
};

class VerbsAcceptingEnd final : public AcceptingEnd {
 public:
  VerbsAcceptingEnd(const CarrierContext& context, std::shared_ptr<DeviceHolder> holder)
      : context_(context), holder_(std::move(holder)) {}

  Result<CarrierBytes> Answer(std::span<const std::byte> offer) override {
    FD_ASSIGN_OR_RETURN(const VerbsHello peer, ParseVerbsHello(offer, context_.endpoint));
    if (!making_.has_value()) making_.emplace([this] { return MakeEnd(context_, holder_.get()); });
    FD_ASSIGN_OR_RETURN(endpoint_, making_->Take());
    FD_RETURN_IF_ERROR(endpoint_->Connect(peer, peer.service_level, peer.traffic_class));
    return BytesOf(endpoint_->hello());
  }

  Result<std::unique_ptr<Endpoint>> Advance() override { return std::unique_ptr<Endpoint>(std::move(endpoint_)); }
  void AppendWants(std::vector<pollfd>* fds) const override {
    if (endpoint_ == nullptr && making_.has_value()) making_->AppendWants(fds);
  }

 private:
  const CarrierContext context_;
  const std::shared_ptr<DeviceHolder> holder_;
  std::unique_ptr<VerbsEndpoint> endpoint_;
  std::optional<EndInBackground> making_;
};

class VerbsCarrier final : public Carrier {
 public:
  explicit VerbsCarrier(const TransportSettings& settings) : holder_(std::make_shared<DeviceHolder>(settings)) {}

  TransportKind kind() const override { return TransportKind::kVerbs; }
  Status Available() const override { return holder_->Get().status(); }
  std::unique_ptr<DialingEnd> Dial(const CarrierContext& context) const override {
    return std::make_unique<VerbsDialingEnd>(context, holder_);
  }
  std::unique_ptr<AcceptingEnd> Accept(const CarrierContext& context) const override {
    return std::make_unique<VerbsAcceptingEnd>(context, holder_);
  }

 private:
  const std::shared_ptr<DeviceHolder> holder_;
};

}  // namespace

std::unique_ptr<Carrier> MakeVerbsCarrier(const TransportSettings& settings) {
  return std::make_unique<VerbsCarrier>(settings);
}

}  // namespace fastdecode
