// The data path's messages. docs/wire.md is this file's page: they change together.
//
// A message is a 64-byte header and a payload, little-endian, in one slot of the
// transport. What does not change from layer to layer travels once a step
// (kStepBegin); the messages of a layer hold the header and the rows.
//
// Rows are f16. A QKV row is [Q: num_heads*head_dim | K: kv_heads*head_dim | V: the
// same]; an O row is [num_heads*head_dim]. Within a mini-batch rows are ordered by
// R-worker, so an R-worker's share is one contiguous slice and nothing is packed.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fastdecode {

inline constexpr uint32_t kWireMagic = 0x31444346;  // "FCD1"
inline constexpr uint16_t kWireVersion = 1;

enum class MessageType : uint16_t {
  // S-worker -> R-worker, decode lane.
  kStepBegin = 1,  // payload: rows x StepRow; starts pass `step` of `mini_batch`
  kQkvRows = 2,    // payload: rows x qkv_width f16; append K, V at each row's position, attend, answer kORows
  // S-worker -> R-worker, bulk lane.
  kKvAppend = 3,     // payload: rows x [K | V] f16 of `sequence`, `layer`, first at `position`; idempotent
  kPrefillDone = 4,  // every layer's K/V of `sequence` up to `position` tokens has been sent; answered by kPrefillAck
  kFree = 5,         // forget `sequence`; answered by kFreed. Unknown sequences are freed successfully.
  // R-worker -> S-worker, decode lane.
  kORows = 16,  // payload: rows x q_width f16; compute_ns, queue_ns, context_tokens are set
  // R-worker -> S-worker, bulk lane.
  kPrefillAck = 17,
  kFreed = 18,
  kFault = 19,  // payload: UTF-8 text, why this R-worker ends the session; the connection closes after it
};

constexpr bool IsKnownMessageType(uint16_t type) { return (type >= 1 && type <= 5) || (type >= 16 && type <= 19); }

inline constexpr uint16_t kDtypeF16 = 1;

struct MessageHeader {
  uint32_t magic = kWireMagic;
  uint16_t version = kWireVersion;
  uint16_t type = 0;           // MessageType
  uint32_t incarnation = 0;    // of the session, given by the R-worker at the handshake
  uint32_t payload_bytes = 0;  // after this header
  uint16_t mini_batch = 0;
  uint16_t layer = 0;
  uint32_t rows = 0;
  uint64_t step = 0;  // pass number within the mini-batch
  uint64_t sequence = 0;
  uint32_t position = 0;  // tokens
  uint16_t dtype = kDtypeF16;
  uint16_t reserved = 0;
  uint32_t compute_ns = 0;      // kORows: time in the kernels, saturated
  uint32_t queue_ns = 0;        // kORows: from arrival to the start of computing, saturated
  uint64_t context_tokens = 0;  // kORows: summed cached tokens that these rows attended to (this R-worker's W)
};
static_assert(sizeof(MessageHeader) == 64 && std::is_trivially_copyable_v<MessageHeader>);

// One row of a pass.
struct StepRow {
  uint64_t sequence = 0;
  uint32_t position = 0;  // index of the new token = tokens cached before it
  uint32_t reserved = 0;
};
static_assert(sizeof(StepRow) == 16);

}  // namespace fastdecode
