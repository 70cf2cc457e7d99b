#include "common/transport/verbs/verbs_wire.h"

#include <string>

namespace fastdecode {
namespace {

constexpr uint32_t kMax24 = (1U << 24) - 1;
constexpr uint32_t kMinWrite = 4096;
constexpr uint32_t kMaxWrite = 1U << 31;

Status CheckLane(const VerbsLaneHello& hello, const LaneOptions& own, const char* name) {
  const std::string what = std::string("verbs: the other end's ") + name + " lane: ";
  if (hello.slot_bytes != own.slot_bytes) {
    return DataLoss(what + "slots of " + std::to_string(hello.slot_bytes) + " bytes, here " +
                    std::to_string(own.slot_bytes));
  }
  if (hello.slots < 1 || hello.slots > kMaxVerbsSlots || hello.window < 1 || hello.window > kMaxVerbsSlots) {
    return DataLoss(what + std::to_string(hello.slots) + " slots and a window of " + std::to_string(hello.window) +
                    ", expected 1 to " + std::to_string(kMaxVerbsSlots));
  }
  if (hello.pair == 0 || hello.pair > kMax24 || hello.first_psn > kMax24) {
    return DataLoss(what + "queue pair " + std::to_string(hello.pair) + ", first PSN " +
                    std::to_string(hello.first_psn) + ", expected 24 bits");
  }
  if (hello.ring > UINT64_MAX - hello.slot_bytes * hello.slots) return DataLoss(what + "a ring beyond all addresses");
  return OkStatus();
}

}  // namespace

Result<VerbsHello> ParseVerbsHello(std::span<const std::byte> bytes, const EndpointOptions& options) {
  VerbsHello hello;
  if (bytes.size() != sizeof(hello)) {
    return DataLoss("verbs: a hello of " + std::to_string(bytes.size()) + " bytes, expected " +
                    std::to_string(sizeof(hello)));
  }
  std::memcpy(static_cast<void*>(&hello), bytes.data(), sizeof(hello));
  if (hello.magic != kVerbsMagic || hello.version != kVerbsVersion) {
    return DataLoss("verbs: a hello of version " + std::to_string(hello.version) + ", expected " +
                    std::to_string(kVerbsVersion));
  }
  if (hello.link_layer < 1 || hello.link_layer > 2 || hello.mtu < 1 || hello.mtu > 5 || hello.service_level > 15) {
    return DataLoss("verbs: a hello with link layer " + std::to_string(hello.link_layer) + ", MTU code " +
                    std::to_string(hello.mtu) + ", service level " + std::to_string(hello.service_level));
  }
  if (hello.max_write < kMinWrite || hello.max_write > kMaxWrite) {
    return DataLoss("verbs: writes of at most " + std::to_string(hello.max_write) + " bytes make no sense");
  }
  FD_RETURN_IF_ERROR(CheckLane(hello.lanes[0], options.lanes[0], "decode"));
  FD_RETURN_IF_ERROR(CheckLane(hello.lanes[1], options.lanes[1], "bulk"));
  return hello;
}

}  // namespace fastdecode
