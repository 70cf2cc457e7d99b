// What the two ends of a verbs connection tell each other: a hello each, before the queue
// pairs are connected, and the immediate data of each RDMA write afterwards.
// docs/wire.md has both: they change together.
//
// Each end has a ring of receive slots a lane, registered for the other's writes. A message
// is written into a slot of the peer's that the writer holds a credit for, and the immediate
// names that slot; whoever releases a slot returns the credit in the immediate of its next
// message, or in a message of its own that carries nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "common/transport/transport.h"

namespace fastdecode {

inline constexpr uint32_t kVerbsMagic = 0x56444346;  // "FCDV"
inline constexpr uint16_t kVerbsVersion = 2;
inline constexpr int kMaxVerbsSlots = 4096;  // of a ring: what 12 bits can name

struct VerbsLaneHello {
  uint64_t ring = 0;        // address of the receive slots
  uint64_t slot_bytes = 0;  // of both directions
  uint32_t key = 0;         // that lets the peer write there
  uint32_t slots = 0;       // 1 ... kMaxVerbsSlots
  uint32_t window = 0;      // of the peer's slots the sender of this hello will use at most so many
  uint32_t pair = 0;        // queue pair number, 24 bits
  uint32_t first_psn = 0;   // packet sequence number, 24 bits
  uint32_t reserved = 0;
};
static_assert(sizeof(VerbsLaneHello) == 40);

struct VerbsHello {
  uint32_t magic = kVerbsMagic;
  uint16_t version = kVerbsVersion;
  uint8_t link_layer = 0;     // ibv: 1 InfiniBand, 2 Ethernet
  uint8_t mtu = 0;            // ibv_mtu: 1 is 256 bytes ... 5 is 4096
  uint16_t lid = 0;           // InfiniBand
  uint8_t service_level = 0;  // the S-worker's, which both use
  uint8_t traffic_class = 0;  // the same
  uint32_t max_write = 0;     // bytes of one RDMA write; longer messages go in several
  std::array<uint8_t, 16> gid{};
  std::array<VerbsLaneHello, kNumLanes> lanes{};
};
static_assert(sizeof(VerbsHello) == 112 && std::is_trivially_copyable_v<VerbsHello>);

// Bounded and complete, or why not. `options`: this end's.
Result<VerbsHello> ParseVerbsHello(std::span<const std::byte> bytes, const EndpointOptions& options);

// The immediate: bits 0-11 a slot, 28-31 the kind. Of a message: bits 12-23 a credit's slot, 24 set if there is one;
// of a credit: bit 12 + i set if slot + 1 + i is free again, too. All other bits are zero.
enum class ImmediateKind : uint8_t {
  kMessage = 1,  // slot: of the receiver, where the message lies
  kCredit = 2,   // slot and those after it: of the sender of this, free again
  kBye = 3,      // the sender closes; nothing follows
};

struct Immediate {
  static constexpr int kMore = 13;  // slots after the first that a credit can name

  ImmediateKind kind = ImmediateKind::kMessage;
  int slot = 0;
  int credit = -1;    // of a message; -1: none
  uint32_t more = 0;  // of a credit

  uint32_t Pack() const {
    const uint32_t rest = credit < 0 ? more : static_cast<uint32_t>(credit) | 1U << 12;
    return static_cast<uint32_t>(slot) | rest << 12 | static_cast<uint32_t>(kind) << 28;
  }
  // Empty: no such immediate.
  static std::optional<Immediate> Unpack(uint32_t bits) {
    const uint32_t kind = bits >> 28, rest = bits >> 12 & 0xffffU;
    Immediate immediate{static_cast<ImmediateKind>(kind), static_cast<int>(bits & 0xfffU)};
    if (kind < 1 || kind > 3 || rest >> kMore != 0) return std::nullopt;
    if (immediate.kind == ImmediateKind::kCredit) {
      immediate.more = rest;
    } else if (rest >> 12 != 0 && immediate.kind == ImmediateKind::kMessage) {
      immediate.credit = static_cast<int>(rest & 0xfffU);
    } else if (rest != 0) {
      return std::nullopt;
    }
    return immediate;
  }
};

}  // namespace fastdecode
