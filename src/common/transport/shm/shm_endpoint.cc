// Set-up; the data path is in shm_endpoint_datapath.cc.
#include "common/transport/shm/shm_endpoint.h"

#include "common/base/logging.h"
#include "common/transport/message_check.h"

namespace fastdecode {

ShmEndpoint::ShmEndpoint(const EndpointOptions& options, ShmMemory memory, Fd socket, int spin_us, const Clock& clock)
    : options_(options),
      memory_(std::move(memory)),
      socket_(std::move(socket)),
      clock_(clock),
      spin_ns_(int64_t{spin_us} * 1000),
      spin_budget_ns_(spin_ns_) {}

std::unique_ptr<ShmEndpoint> ShmEndpoint::Create(const EndpointOptions& options, const ShmLayout& layout, ShmSide side,
                                                 ShmMemory memory, Fd socket, int spin_us, const Clock& clock) {
  CHECK_EQ(memory.size(), layout.bytes);
  memory.CloseDescriptor();
  std::unique_ptr<ShmEndpoint> endpoint(new ShmEndpoint(options, std::move(memory), std::move(socket), spin_us, clock));
  endpoint->SetUp(layout, side);
  return endpoint;
}

void ShmEndpoint::SetUp(const ShmLayout& layout, ShmSide side) {
  std::byte* base = memory_.data();
  auto* sleepers = reinterpret_cast<Sleeper*>(base);
  own_ = &sleepers[static_cast<size_t>(side)];
  peer_ = &sleepers[static_cast<size_t>(OtherSide(side))];
  for (size_t i = 0; i < kNumLanes; ++i) {
    const ShmLaneLayout& out = layout.lanes[static_cast<size_t>(side)][i];
    const ShmLaneLayout& in = layout.lanes[static_cast<size_t>(OtherSide(side))][i];
    LaneState& lane = lanes_[i];
    lane.name = kLaneNames[i];
    lane.slot_bytes = out.slot_bytes;
    CHECK_EQ(out.slot_bytes, in.slot_bytes) << "of both directions";
    lane.send_slots = out.slots;
    lane.send_base = base + out.slots_offset;
    lane.post = reinterpret_cast<PostedWord*>(base + out.posted_offset);
    lane.credit = reinterpret_cast<ReturnedWord*>(base + out.returned_offset);
    lane.send_free.reserve(static_cast<size_t>(out.slots));
    for (int slot = out.slots - 1; slot >= 0; --slot) lane.send_free.push_back(slot);
    lane.send_state.assign(static_cast<size_t>(out.slots), SlotState::kFree);
    lane.recv_slots = in.slots;
    lane.recv_limit = options_.lanes[i].recv_slots;
    lane.recv_base = base + in.slots_offset;
    lane.taken = reinterpret_cast<PostedWord*>(base + in.posted_offset);
    lane.give_back = reinterpret_cast<ReturnedWord*>(base + in.returned_offset);
    lane.recv_state.assign(static_cast<size_t>(in.slots), SlotState::kFree);
    lane.headers.assign(static_cast<size_t>(in.slots), MessageHeader());
  }
}

Status ShmEndpoint::CheckPosted(const LaneState& lane, uint32_t slot, size_t bytes) const {
  std::string what;
  if (slot >= static_cast<uint32_t>(lane.recv_slots)) {
    what = "it posts slot " + std::to_string(slot) + ", there are " + std::to_string(lane.recv_slots);
  } else if (lane.recv_state[slot] != SlotState::kFree) {
    what = "it posts slot " + std::to_string(slot) + " again, which has not been returned";
  } else if (bytes > lane.slot_bytes) {
    what = "it posts " + std::to_string(bytes) + " bytes, a slot holds " + std::to_string(lane.slot_bytes);
  } else if (bytes < sizeof(MessageHeader)) {
    what = "a message was cut: " + std::to_string(bytes) + " of at least " + std::to_string(sizeof(MessageHeader)) +
           " bytes came";
  } else {
    return OkStatus();
  }
  return DataLoss(options_.peer + ": " + lane.name + " ring: " + what);
}

}  // namespace fastdecode
