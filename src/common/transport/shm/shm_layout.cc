#include "common/transport/shm/shm_layout.h"

#include "common/base/huge_pages.h"
#include "common/base/logging.h"

namespace fastdecode {
namespace {

constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Takes `bytes` at a multiple of `unit`.
size_t Take(size_t* end, size_t bytes, size_t unit) {
  const size_t offset = RoundUp(*end, unit);
  *end = offset + bytes;
  return offset;
}

}  // namespace

ShmLayout MakeShmLayout(const EndpointOptions& dialer, const EndpointOptions& accepter) {
  ShmLayout layout;
  const EndpointOptions* senders[] = {&dialer, &accepter};
  size_t end = 2 * sizeof(Sleeper);
  for (size_t direction = 0; direction < 2; ++direction) {
    for (size_t i = 0; i < kNumLanes; ++i) {
      const LaneOptions& options = senders[direction]->lanes[i];
      CHECK(options.slot_bytes >= sizeof(MessageHeader) && options.slot_bytes % 64 == 0) << options.slot_bytes;
      CHECK(options.send_slots > 0 && static_cast<size_t>(options.send_slots) < kShmMaxSlots);
      ShmLaneLayout& lane = layout.lanes[direction][i];
      lane.slot_bytes = options.slot_bytes;
      lane.slots = options.send_slots;
      const auto slots = static_cast<size_t>(lane.slots);
      lane.posted_offset = Take(&end, slots * sizeof(PostedWord), 64);
      lane.returned_offset = Take(&end, slots * sizeof(ReturnedWord), 64);
    }
  }
  for (auto& direction : layout.lanes) {
    for (ShmLaneLayout& lane : direction) {
      lane.slots_offset = Take(&end, lane.slot_bytes * static_cast<size_t>(lane.slots), kPage);
    }
  }
  layout.bytes = WholePages(end);
  return layout;
}

EndpointOptions MirrorOptions(const EndpointOptions& options) {
  EndpointOptions mirrored = options;
  for (LaneOptions& lane : mirrored.lanes) std::swap(lane.send_slots, lane.recv_slots);
  return mirrored;
}

}  // namespace fastdecode
