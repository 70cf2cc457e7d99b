#include "rworker/session_plan.h"

#include <algorithm>
#include <limits>

namespace fastdecode::rworker {
namespace {

constexpr uint32_t kMaxBlockTokens = 1 << 12;
constexpr uint32_t kMaxContext = 1 << 24;
constexpr uint32_t kMaxSequences = 1 << 20;
constexpr uint32_t kMaxRows = 1 << 16;
constexpr uint32_t kMaxMiniBatches = 16;
constexpr uint32_t kMaxSlots = 1 << 12;

Status CheckRange(const char* what, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(std::string(what) + " is " + std::to_string(value) + ", expected " + std::to_string(low) +
                         " to " + std::to_string(high));
}

Status CheckModel(const SessionOpen& open, const AttentionShape& shape, const std::optional<AttentionShape>& only) {
  // As sent, before they become signed numbers.
  FD_RETURN_IF_ERROR(CheckRange("num_layers", open.num_layers, 1, kMaxLayers));
  FD_RETURN_IF_ERROR(CheckRange("num_heads", open.num_heads, 1, kMaxHeads));
  FD_RETURN_IF_ERROR(CheckRange("num_kv_heads", open.num_kv_heads, 1, open.num_heads));
  FD_RETURN_IF_ERROR(CheckRange("head_dim", open.head_dim, 0, std::numeric_limits<int32_t>::max()));
  FD_RETURN_IF_ERROR(CheckShape(shape));
  if (!only || *only == shape) return OkStatus();
  return InvalidArgument("another model's shape: " + Describe(shape) + "; this R-worker serves only " +
                         Describe(*only) + " (--model_shape)");
}

Status CheckKvCode(uint8_t code, const char* side) {
  if (!kernels::NameOf(code).empty()) return OkStatus();
  std::string known;
  for (const std::string& name : kernels::FormatNames()) {
    known += (known.empty() ? "" : ", ") + name + " (" + std::to_string(kernels::CodeOf(name)) + ")";
  }
  return {StatusCode::kUnimplemented,
          "kv_dtype " + std::to_string(code) + " is not in this build: asked for as " + side + "; there are " + known};
}

Status CheckLimits(const SessionOpen& open) {
  FD_RETURN_IF_ERROR(CheckRange("block_tokens", open.block_tokens, kernels::kTileTokens, kMaxBlockTokens));
  if (open.block_tokens % kernels::kTileTokens != 0) {
    return InvalidArgument("block_tokens " + std::to_string(open.block_tokens) + " is no multiple of " +
                           std::to_string(kernels::kTileTokens));
  }
  FD_RETURN_IF_ERROR(CheckRange("max_context", open.max_context, 1, kMaxContext));
  FD_RETURN_IF_ERROR(CheckRange("max_sequences", open.max_sequences, 1, kMaxSequences));
  FD_RETURN_IF_ERROR(CheckRange("max_rows", open.max_rows, 1, std::min(kMaxRows, open.max_sequences)));
  FD_RETURN_IF_ERROR(CheckRange("mini_batches", open.mini_batches, 1, kMaxMiniBatches));
  FD_RETURN_IF_ERROR(CheckRange("heartbeat_ms", open.heartbeat_ms, 10, 60'000));
  FD_RETURN_IF_ERROR(CheckRange("peer_timeout_ms", open.peer_timeout_ms, 2 * uint64_t{open.heartbeat_ms}, 600'000));
  if (open.transport > kMaxTransportKind) {
    return {StatusCode::kUnimplemented,
            "transport " + std::to_string(open.transport) + " is not in this build: expected auto, tcp, shm or verbs"};
  }
  FD_RETURN_IF_ERROR(CheckKvCode(static_cast<uint8_t>(open.kv_dtype & 0xff), "keys"));
  return CheckKvCode(static_cast<uint8_t>(open.kv_dtype >> 8), "values");
}

Status CheckLane(const char* name, const LaneRequest& lane) {
  std::string prefix = std::string(name) + " lane: ";
  // 2^31 for a slot and 2^12 slots: their product and sums stay far from overflow.
  FD_RETURN_IF_ERROR(
      CheckRange((prefix + "slot_bytes").c_str(), lane.slot_bytes, 2 * sizeof(MessageHeader), uint64_t{1} << 31));
  FD_RETURN_IF_ERROR(CheckRange((prefix + "send_slots").c_str(), lane.send_slots, 1, kMaxSlots));
  FD_RETURN_IF_ERROR(CheckRange((prefix + "recv_slots").c_str(), lane.recv_slots, 1, kMaxSlots));
  if (lane.slot_bytes % 64 != 0) return InvalidArgument(prefix + "slot_bytes is no multiple of 64");
  return OkStatus();
}

Status CheckMemory(const char* what, uint64_t bytes, int64_t limit) {
  if (bytes <= static_cast<uint64_t>(limit)) return OkStatus();
  return {StatusCode::kResourceExhausted, std::string(what) + " of " + std::to_string(bytes) +
                                              " bytes pass this R-worker's limit of " + std::to_string(limit) +
                                              " (--max_buffer_memory); ask for fewer sequences or raise it"};
}

}  // namespace

Result<SessionPlan> PlanSession(const SessionOpen& open, int64_t max_buffer_memory,
                                const std::optional<AttentionShape>& only) {
  SessionPlan plan;
  plan.shape = ShapeOf(open);
  FD_RETURN_IF_ERROR(CheckModel(open, plan.shape, only));
  FD_RETURN_IF_ERROR(CheckLimits(open));
  FD_RETURN_IF_ERROR(CheckLane("decode", open.lanes[0]));
  FD_RETURN_IF_ERROR(CheckLane("bulk", open.lanes[1]));

  plan.limits = {static_cast<int32_t>(open.block_tokens), static_cast<int32_t>(open.max_context),
                 static_cast<int32_t>(open.max_sequences), static_cast<int32_t>(open.max_rows),
                 static_cast<int32_t>(open.mini_batches)};
  plan.kv = {static_cast<uint8_t>(open.kv_dtype & 0xff), static_cast<uint8_t>(open.kv_dtype >> 8)};
  for (size_t i = 0; i < kNumLanes; ++i) {
    plan.endpoint.lanes[i] = {open.lanes[i].slot_bytes, static_cast<int>(open.lanes[i].recv_slots),
                              static_cast<int>(open.lanes[i].send_slots)};
  }
  plan.transport = static_cast<TransportKind>(open.transport);
  plan.heartbeat_ms = static_cast<int>(open.heartbeat_ms);
  plan.peer_timeout_ms = static_cast<int>(open.peer_timeout_ms);
  plan.name = GetText(open.name);

  auto row_bytes = static_cast<uint64_t>(plan.shape.qkv_width()) * sizeof(uint16_t);
  if (open.lanes[0].slot_bytes < sizeof(MessageHeader) + open.max_rows * row_bytes) {
    return InvalidArgument("decode lane: a slot of " + std::to_string(open.lanes[0].slot_bytes) +
                           " bytes does not hold max_rows " + std::to_string(open.max_rows) + " rows of " +
                           std::to_string(row_bytes) + " bytes");
  }
  uint64_t blocks = (uint64_t{open.max_context} + open.block_tokens - 1) / open.block_tokens;
  uint64_t tables = open.max_sequences * (blocks + open.num_layers) * sizeof(uint32_t);
  FD_RETURN_IF_ERROR(CheckMemory("message buffers", EndpointMemoryBytes(plan.endpoint), max_buffer_memory));
  FD_RETURN_IF_ERROR(CheckMemory("block tables", tables, max_buffer_memory));
  return plan;
}

int64_t KvTokenBytes(const SessionPlan& plan) {
  const kernels::KvLayout layout =
      kernels::MakeLayout(plan.kv, plan.shape.num_kv_heads, plan.shape.head_dim, plan.limits.block_tokens);
  return layout.block_bytes() / layout.block_tokens * plan.shape.num_layers;
}

AttentionShape ShapeOf(const SessionOpen& open) {
  return {static_cast<int32_t>(open.num_layers), static_cast<int32_t>(open.num_heads),
          static_cast<int32_t>(open.num_kv_heads), static_cast<int32_t>(open.head_dim)};
}

}  // namespace fastdecode::rworker
