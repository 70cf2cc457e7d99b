// The control connection's messages: the opening of every connection and the frames of
// a session. docs/wire.md is this file's page: they change together.
//
// Every connection to an R-worker's port, whatever its purpose, opens the same way:
//   S -> R  Hello        48 bytes
//   R -> S  Reply        40 bytes, kChallenge
//   S -> R  Proof        32 bytes
//   R -> S  Reply        40 bytes, kAccepted
// or a Reply that refuses, after which R closes. Hello and Reply keep this layout in
// all versions, so that two versions can tell each other so. Nothing else is read
// before the proof. After it, a data stream carries messages.h's messages and the
// control connection carries frames: a FrameHeader and the struct of its type.
//
// Little-endian, fixed sizes. Texts are UTF-8, padded with zeros.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace fastdecode {

inline constexpr uint32_t kHelloMagic = 0x48444346;  // "FCDH"
inline constexpr uint32_t kReplyMagic = 0x52444346;  // "FCDR"
inline constexpr uint32_t kFrameMagic = 0x46444346;  // "FCDF"
inline constexpr uint16_t kProtocolVersion = 3;

using AuthKey = std::array<uint8_t, 32>;
using AuthNonce = std::array<uint8_t, 32>;
using AuthMac = std::array<uint8_t, 32>;

enum class Purpose : uint8_t { kControl = 1, kDecode = 2, kBulk = 3, kShared = 4 };

struct Hello {
  uint32_t magic = kHelloMagic;
  uint16_t version = kProtocolVersion;
  uint8_t purpose = 0;  // Purpose
  uint8_t reserved = 0;
  uint32_t incarnation = 0;  // data streams: of the session that they belong to
  uint32_t reserved2 = 0;
  AuthNonce nonce{};
};
static_assert(sizeof(Hello) == 48);

enum class ReplyCode : uint16_t {
  kChallenge = 1,        // bytes: R's nonce
  kAccepted = 2,         // bytes: R's MAC
  kRefusedVersion = 16,  // bytes: zero, here and below
  kRefusedProof = 17,    // the proof is wrong: another secret
  kRefusedStream = 18,   // no session of that incarnation waits for this stream
};

struct Reply {
  uint32_t magic = kReplyMagic;
  uint16_t version = kProtocolVersion;
  uint16_t code = 0;  // ReplyCode
  std::array<uint8_t, 32> bytes{};
};
static_assert(sizeof(Reply) == 40);

struct Proof {
  AuthMac mac{};
};
static_assert(sizeof(Proof) == 32);

enum class FrameType : uint16_t {
  kSessionOpen = 1,   // S -> R, first
  kSessionGrant = 2,  // R -> S
  kRefusal = 3,       // R -> S instead of a grant; R closes after it
  kHeartbeat = 4,     // both ways, each heartbeat_ms, from SessionOpen on
  kGoodbye = 5,       // both ways: the sender ends the session and closes
  // After the grant: which transport carries the rows, and how its two ends meet.
  kTransportOffer = 6,   // S -> R: this kind, and what its other end must know
  kTransportAnswer = 7,  // R -> S: the same from R, or why not; a refusal may come later, too
  kTransportReady = 8,   // S -> R: S has its end of this kind; both serve
};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kProtocolVersion;
  uint16_t type = 0;           // FrameType
  uint32_t payload_bytes = 0;  // the size of its struct exactly
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 16);

// Code 1 is f16, 2 bf16, 3 int8, 4 int4; from 64 on users' codecs (docs/kv_formats.md).
constexpr uint16_t PackKvDtype(uint8_t key_code, uint8_t value_code) {
  return static_cast<uint16_t>(key_code | value_code << 8);
}

// Slots of one lane, seen from the S-worker.
struct LaneRequest {
  uint64_t slot_bytes = 0;
  uint32_t send_slots = 0;
  uint32_t recv_slots = 0;
};
static_assert(sizeof(LaneRequest) == 16);

struct SessionOpen {
  static constexpr FrameType kType = FrameType::kSessionOpen;
  uint32_t num_layers = 0;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_tokens = 0;
  uint32_t max_context = 0;    // tokens of one sequence
  uint32_t max_sequences = 0;  // held at a time
  uint32_t max_rows = 0;       // of one mini-batch
  uint32_t mini_batches = 0;
  uint32_t heartbeat_ms = 0;
  uint32_t peer_timeout_ms = 0;
  uint16_t transport = 0;  // TransportKind: what S was told to use; 0 auto
  uint16_t kv_dtype = 0;   // PackKvDtype: the keys' code in the low byte, the values' in the high one
  LaneRequest lanes[2];    // decode, bulk
  char name[64] = {};      // of the S-worker
};
static_assert(sizeof(SessionOpen) == 144);

struct SessionGrant {
  static constexpr FrameType kType = FrameType::kSessionGrant;
  uint32_t incarnation = 0;
  uint32_t threads = 0;
  uint64_t kv_blocks = 0;
  uint64_t kv_memory = 0;  // bytes
  uint16_t transport = 0;  // TransportKind: what R was told to use; 0 auto
  uint16_t reserved = 0;
  uint32_t kv_token_bytes = 0;  // of a cached token, all layers
  char hostname[64] = {};
  char kernel[32] = {};
};
static_assert(sizeof(SessionGrant) == 128);

enum class RefusalCode : uint32_t {
  kInvalid = 1,      // the request contradicts itself or passes a limit
  kUnsupported = 2,  // a shape, dtype or transport that is not in this build
  kNoMemory = 3,     // this R-worker's memory does not suffice
  kBusy = 4,         // another session is being served; waiting may help
};

struct Refusal {
  static constexpr FrameType kType = FrameType::kRefusal;
  uint32_t code = 0;  // RefusalCode
  char text[508] = {};
};
static_assert(sizeof(Refusal) == 512);

// The S-worker's has zeros in all fields.
struct Heartbeat {
  static constexpr FrameType kType = FrameType::kHeartbeat;
  uint64_t free_blocks = 0;
  uint64_t total_blocks = 0;
  uint64_t sequences = 0;
  uint64_t workload = 0;       // W now: cached tokens of the sequences being decoded
  uint64_t peak_workload = 0;  // since the session began, like those below
  uint64_t rows = 0;
  uint64_t steps = 0;
  uint64_t kv_tokens_appended = 0;
  uint64_t compute_ns = 0;
  uint64_t kv_beyond_range = 0;  // elements of K and V that the cache's formats could not hold and saturated
};
static_assert(sizeof(Heartbeat) == 80);

struct Goodbye {
  static constexpr FrameType kType = FrameType::kGoodbye;
  char text[256] = {};
};
static_assert(sizeof(Goodbye) == 256);

// Of a carrier's own bytes in an offer or an answer.
inline constexpr size_t kMaxCarrierBytes = 1016;

struct TransportOffer {
  static constexpr FrameType kType = FrameType::kTransportOffer;
  uint16_t kind = 0;  // TransportKind, not auto
  uint16_t reserved = 0;
  uint32_t size = 0;  // of the carrier's bytes
  std::byte bytes[kMaxCarrierBytes] = {};
};
static_assert(sizeof(TransportOffer) == 1024);

struct TransportAnswer {
  static constexpr FrameType kType = FrameType::kTransportAnswer;
  uint16_t kind = 0;
  uint16_t refusal = 0;  // 0: accepted, bytes are the carrier's; else a RefusalCode, bytes are a text
  uint32_t size = 0;
  std::byte bytes[kMaxCarrierBytes] = {};
};
static_assert(sizeof(TransportAnswer) == 1024);

struct TransportReady {
  static constexpr FrameType kType = FrameType::kTransportReady;
  uint16_t kind = 0;
  uint16_t reserved = 0;
  char why[508] = {};  // why this kind, for R's log
};
static_assert(sizeof(TransportReady) == 512);

inline constexpr size_t kMaxFramePayload = 1024;

// The payload's size of a frame of this type; 0: no such type.
constexpr size_t FramePayloadBytes(uint16_t type) {
  switch (static_cast<FrameType>(type)) {
    case FrameType::kSessionOpen:
      return sizeof(SessionOpen);
    case FrameType::kSessionGrant:
      return sizeof(SessionGrant);
    case FrameType::kRefusal:
      return sizeof(Refusal);
    case FrameType::kHeartbeat:
      return sizeof(Heartbeat);
    case FrameType::kGoodbye:
      return sizeof(Goodbye);
    case FrameType::kTransportOffer:
      return sizeof(TransportOffer);
    case FrameType::kTransportAnswer:
      return sizeof(TransportAnswer);
    case FrameType::kTransportReady:
      return sizeof(TransportReady);
  }
  return 0;
}
static_assert(sizeof(TransportOffer) <= kMaxFramePayload && std::is_trivially_copyable_v<SessionOpen> &&
              std::is_trivially_copyable_v<SessionGrant> && std::is_trivially_copyable_v<Heartbeat>);

// Cut to what fits. The field is zeros before.
template <size_t N>
void SetText(char (&field)[N], std::string_view text) {
  std::memcpy(field, text.data(), text.size() < N - 1 ? text.size() : N - 1);
}
// Up to the first zero; control characters, which could forge log lines, and what is no UTF-8, which clients would
// choke on, become '?'.
std::string CleanText(std::string_view field);
template <size_t N>
std::string GetText(const char (&field)[N]) {
  return CleanText(std::string_view(field, N));
}

}  // namespace fastdecode
