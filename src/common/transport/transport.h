// The transport's contract: one Endpoint is one peer's data path. Each folder beside this
// file implements it for one kind of carrier.
//
// Messages live in slots of a size fixed at the handshake, in memory that the owner
// of the endpoint provides (pinned host memory on a GPU node, registered by verbs) or
// that both ends share (shm).
// Sending: Acquire a slot, write header and payload into it, Post it. Receiving:
// Poll gives a slot that is the caller's until Release. Nothing is allocated, locked
// or copied in between.
//
// Two lanes: decode (latency) and bulk (prefill's K/V); messages of one lane arrive
// in order, those of different lanes in any order.
//
// Thread rule: one owner thread, asserted in debug builds; HandOver lets another one follow it.
// Failure: after any Status other than kWouldBlock the endpoint is dead; every later call answers
// the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/transport/owner_thread.h"
#include "common/wire/messages.h"

namespace fastdecode {

enum class Lane : uint8_t { kDecode = 0, kBulk = 1 };
inline constexpr int kNumLanes = 2;

struct LaneOptions {
  size_t slot_bytes = 0;  // header included; a multiple of 64
  int send_slots = 0;
  int recv_slots = 0;
};

struct EndpointOptions {
  std::array<LaneOptions, kNumLanes> lanes;
  uint32_t incarnation = 0;  // a header with another one is an error
  std::string peer;          // for messages: "rworker 127.0.0.1:7200"
};

// Bytes of slot memory that an endpoint with these options needs.
size_t EndpointMemoryBytes(const EndpointOptions& options);

struct SendSlot {
  Lane lane = Lane::kDecode;
  int index = -1;
  std::span<std::byte> bytes;  // slot_bytes, 64-byte aligned
  MessageHeader* header() const { return reinterpret_cast<MessageHeader*>(bytes.data()); }
  std::byte* payload() const { return bytes.data() + sizeof(MessageHeader); }
};

struct RecvSlot {
  Lane lane = Lane::kDecode;
  int index = -1;
  std::span<const std::byte> bytes;  // header and payload exactly, 64-byte aligned
  int64_t arrived_ns = 0;            // when the last byte was there
  // The header that was checked. A peer may still be able to write to `bytes` (shm): what
  // bounds or indexes anything is to be read from here, or copied first.
  const MessageHeader* checked_header = nullptr;
  const MessageHeader& header() const { return *checked_header; }
  const std::byte* payload() const { return bytes.data() + sizeof(MessageHeader); }
};

struct EndpointStats {
  uint64_t sent_bytes = 0, sent_messages = 0;
  uint64_t received_bytes = 0, received_messages = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;  // Closes; slot memory may be reused afterwards.

  // A free send slot, or kWouldBlock. Slots not yet posted stay the caller's.
  virtual Result<SendSlot> Acquire(Lane lane) = 0;
  // Sends the slot's header and header->payload_bytes of payload; magic, version and
  // incarnation are filled in here. Sending goes on in Poll.
  virtual Status Post(const SendSlot& slot) = 0;
  // Gives back a slot that will not be posted.
  virtual void Abandon(const SendSlot& slot) = 0;

  // Moves bytes both ways without blocking; the next whole message or kWouldBlock.
  virtual Result<RecvSlot> Poll() = 0;
  virtual void Release(const RecvSlot& slot) = 0;

  // Readable when Poll has something to do, or a lane whose Acquire would have blocked a slot. Epoll and poll accept
  // it; it never changes.
  virtual int wait_fd() const = 0;
  // Call before sleeping on wait_fd. False: there is news, so Poll again first, and Acquire
  // where it would have blocked.
  virtual bool PrepareWait() = 0;

  virtual const EndpointOptions& options() const = 0;
  virtual EndpointStats stats() const = 0;

  // The next thread that calls is the owner. The caller orders the two (one was joined, or starts later).
  virtual void HandOver() { owner_.Release(); }

 protected:
  OwnerThread owner_;  // every call of the data path checks it
};

}  // namespace fastdecode
