// One lane of a verbs connection: its queue pair, its rings and who has which slot.
//
// Thread rule: its endpoint's owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/transport/slot_queue.h"
#include "common/transport/verbs/verbs_handles.h"
#include "common/transport/verbs/verbs_wire.h"

namespace fastdecode {

struct VerbsLane {
  static constexpr int kMaxUnreported = 16;  // writes

  enum class SendState : uint8_t {
    kFree,
    kCaller,   // acquired
    kPending,  // posted by the caller; waits for a credit or for room in the send queue
    kSent,     // the device reads it
  };
  enum class RecvState : uint8_t {
    kPeer,    // the peer may write into it
    kReady,   // a message lies there
    kCaller,  // the caller reads it
    kOwed,    // released; the peer does not know yet
  };
  struct Arrived {
    size_t bytes = 0;
    int64_t ns = 0;
    MessageHeader header;  // as it was checked
  };

  const char* name = "";
  Lane lane = Lane::kDecode;
  size_t slot_bytes = 0;
  std::byte* send_base = nullptr;
  std::byte* recv_base = nullptr;
  MemoryRegionPtr send_region;  // read by this device only
  MemoryRegionPtr recv_region;  // written by the peer
  QueuePairPtr pair;            // goes before the regions
  uint32_t first_psn = 0;

  // The peer's ring.
  VerbsLaneHello peer;
  size_t max_write = 0;

  // Sending.
  SlotQueue send_free;
  bool starved = false;  // an Acquire was refused, and nobody was told yet that it need not be
  SlotQueue pending;
  SlotQueue credits;  // the peer's slots that may be written
  std::vector<SendState> send_state;
  std::vector<bool> peer_slot_used;  // written, its credit not yet back
  int window = 0;                    // of the peer's slots
  int max_inline = 0;                // bytes

  // The send queue: work requests are numbered; the slot to free with each, or -1.
  std::vector<int> slot_of_request;  // [depth and the goodbye's spare ones]
  uint64_t posted = 0;
  uint64_t completed = 0;
  uint64_t signaled = 0;  // requests up to here will be reported
  int depth = 0;
  int signal_every = 1;

  // Receiving.
  std::vector<RecvState> recv_state;
  std::vector<Arrived> arrived;
  SlotQueue ready;
  SlotQueue owed;
  int granted = 0;        // of this ring's slots: the peer uses no more
  int taken = 0;          // kReady or kCaller
  int receives_used = 0;  // to be posted again
  bool peer_closed = false;

  std::byte* send_slot(int index) { return send_base + slot_bytes * static_cast<size_t>(index); }
  std::byte* recv_slot(int index) { return recv_base + slot_bytes * static_cast<size_t>(index); }
  uint64_t room() const { return static_cast<uint64_t>(depth) - (posted - completed); }
  // A peer that waits for credits must not wait long; one that has most of the ring may. While messages lie here
  // that will give more, credits wait until they are half of the ring.
  bool OwesUrgently() const {
    return owed.size() >= (ready.empty() ? 1 : std::max(2, granted / 2)) &&
           2 * (granted - taken - owed.size()) <= granted;
  }
  // The next write is to be reported when it is done. Every report may wake an owner that sleeps, so a write that
  // holds no slot has one only that the send queue may not fill; else: so many had none, or this slot is the last,
  // and whoever wants another would wait for a report that is not on its way.
  bool ReportsNext(bool holds_slot) const {
    const uint64_t unreported = posted - signaled + 1;
    if (!holds_slot) return unreported >= kMaxUnreported;
    return unreported >= static_cast<uint64_t>(signal_every) || (send_free.empty() && completed == signaled);
  }
};

}  // namespace fastdecode
