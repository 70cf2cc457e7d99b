// The other end of a verbs connection, made by hand: writes what it is told into the first
// slot of a lane, whatever that is, and says goodbye when it goes.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "common/transport/verbs/verbs_device.h"
#include "common/transport/verbs/verbs_wire.h"
#include "tests/contract/transport/endpoint_pair.h"

namespace fastdecode {

class RawVerbsEnd final : public RawEnd {
 public:
  explicit RawVerbsEnd(const VerbsHello& peer);
  ~RawVerbsEnd() override;

  const VerbsHello& hello() const { return hello_; }

  bool Write(Lane lane, std::span<const std::byte> bytes) override;
  // A write of `bytes` with any immediate, at an offset from the lane's ring.
  bool WriteAt(Lane lane, uint64_t offset, std::span<const std::byte> bytes, uint32_t immediate);
  // The same, anywhere and with any key.
  bool WriteTo(Lane lane, uint64_t address, uint32_t key, std::span<const std::byte> bytes, uint32_t immediate);
  // Its queue pairs are gone, without a word.
  void Vanish();

 private:
  void CreatePair(size_t lane, const VerbsHello& peer);

  const std::shared_ptr<const VerbsDevice> device_;
  const VerbsHello peer_;
  const ProtectionDomainPtr domain_;
  std::vector<std::byte> memory_;
  MemoryRegionPtr region_;
  CompletionQueuePtr queue_;
  std::array<QueuePairPtr, kNumLanes> pairs_;
  VerbsHello hello_;
};

}  // namespace fastdecode
