#include "sworker/rworkers/session_options.h"

#include <algorithm>

namespace fastdecode {
namespace {

size_t RoundUp64(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

std::array<LaneOptions, kNumLanes> SessionLanes(const SessionOptions& options) {
  auto qkv_row = static_cast<size_t>(options.shape.qkv_width()) * sizeof(uint16_t);
  auto kv_row = static_cast<size_t>(options.shape.kv_width()) * 2 * sizeof(uint16_t);
  size_t decode_row = std::max(qkv_row, sizeof(StepRow));

  LaneOptions decode;
  decode.slot_bytes = RoundUp64(sizeof(MessageHeader) + static_cast<size_t>(options.max_rows) * decode_row);
  decode.send_slots = options.mini_batches * options.decode_slots_per_mini_batch;
  decode.recv_slots = decode.send_slots;

  LaneOptions bulk;
  bulk.slot_bytes = RoundUp64(std::max(options.bulk_slot_bytes, sizeof(MessageHeader) + kv_row));
  bulk.send_slots = options.bulk_send_slots;
  bulk.recv_slots = options.bulk_recv_slots;
  return {decode, bulk};
}

}  // namespace fastdecode
