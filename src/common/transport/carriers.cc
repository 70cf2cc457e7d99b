// The list of carriers: a new kind of transport is entered here and nowhere else.
#include "common/base/huge_pages.h"
#include "common/transport/carrier.h"
#include "common/transport/shm/shm_carrier.h"
#include "common/transport/tcp/tcp_carrier.h"
#include "common/transport/verbs/verbs_carrier.h"

namespace fastdecode {

std::shared_ptr<std::byte[]> AllocatePageableSlots(size_t bytes) { return MapPrivateMemory(bytes, false); }

Result<std::shared_ptr<std::byte[]>> MakeSlots(const CarrierContext& context) {
  const size_t bytes = EndpointMemoryBytes(context.endpoint);
  std::shared_ptr<std::byte[]> memory = context.allocate(bytes);
  if (memory != nullptr) return memory;
  return Status(StatusCode::kResourceExhausted,
                "no memory for " + std::to_string(bytes) + " bytes of message slots for " + context.endpoint.peer +
                    "; free memory, raise this process's limit (ulimit -v) or lower pipeline.max_batch");
}

Carriers::Carriers(const TransportSettings& settings) : settings_(settings) {
  carriers_.push_back(MakeVerbsCarrier(settings));
  carriers_.push_back(MakeShmCarrier(settings));
  carriers_.push_back(MakeTcpCarrier());
}

const Carrier* Carriers::Find(TransportKind kind) const {
  for (const auto& carrier : carriers_) {
    if (carrier->kind() == kind) return carrier.get();
  }
  return nullptr;
}

Status Carriers::Check(TransportKind kind) const {
  if (kind == TransportKind::kAuto) return OkStatus();
  const Carrier* carrier = Find(kind);
  if (carrier != nullptr) return carrier->Available();
  return {StatusCode::kUnimplemented, std::string("transport \"") + NameOf(kind) + "\" is not in this build"};
}

}  // namespace fastdecode
