// What lies where in the memory that two processes share.
//
//   page 0            a Sleeper of each side, on cache lines of their own
//   rings             for each direction and lane: posted words, then returned words
//   slots             for each direction and lane: the sender's send slots
//
// A message is written into a send slot in place and read there by the peer: no copy. Its
// sender then puts a word into the posted ring: that is the doorbell, too. The receiver
// puts the slot's number into the returned ring when it needs the slot no more: that is the
// credit. A ring has a place for each slot, so it can't be full while both sides keep the
// rules; whoever doesn't is found out by the checks of the reader, who keeps his own place
// in the ring to himself and reads each word once.
//
// A word carries the lap in which it was written, which tells a new one from an old one;
// memory starts as zeros and laps with 1.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/transport/transport.h"

namespace fastdecode {

// Of the two that share: the one that dialled sends in direction 0.
enum class ShmSide : int { kDialer = 0, kAccepter = 1 };
constexpr ShmSide OtherSide(ShmSide side) { return side == ShmSide::kDialer ? ShmSide::kAccepter : ShmSide::kDialer; }

// What a side waits for while it sleeps on its socket. Its peer sets it back to kAwake and
// then sends one byte.
enum class SleepState : uint32_t { kAwake = 0, kForMessages = 1, kForMessagesOrCredit = 2 };

struct alignas(64) Sleeper {
  std::atomic<uint32_t> state;  // SleepState
};
static_assert(sizeof(Sleeper) == 64 && std::atomic<uint32_t>::is_always_lock_free);

using PostedWord = std::atomic<uint64_t>;    // bytes << 32 | slot << 16 | lap
using ReturnedWord = std::atomic<uint32_t>;  // slot << 16 | lap
static_assert(sizeof(PostedWord) == 8 && sizeof(ReturnedWord) == 4 && PostedWord::is_always_lock_free);

inline constexpr size_t kShmMaxSlots = size_t{1} << 16;

constexpr uint64_t PackPosted(uint32_t slot, uint32_t bytes, uint16_t lap) {
  return uint64_t{bytes} << 32 | uint64_t{slot} << 16 | lap;
}
constexpr uint32_t PackReturned(uint32_t slot, uint16_t lap) { return slot << 16 | lap; }

struct ShmLaneLayout {
  size_t slot_bytes = 0;
  int slots = 0;  // the sender's send slots
  size_t posted_offset = 0;
  size_t returned_offset = 0;
  size_t slots_offset = 0;
};

struct ShmLayout {
  std::array<std::array<ShmLaneLayout, kNumLanes>, 2> lanes;  // [direction][lane]
  size_t bytes = 0;                                           // of the whole, in whole pages
};

// What each side may send follows from its own options.
ShmLayout MakeShmLayout(const EndpointOptions& dialer, const EndpointOptions& accepter);
// The peer's options, if both mean the same: its send slots are our receive slots.
EndpointOptions MirrorOptions(const EndpointOptions& options);

}  // namespace fastdecode
