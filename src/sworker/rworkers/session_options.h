// What the S-worker asks of every R-worker at the handshake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/model_shape.h"
#include "common/transport/transport.h"
#include "common/transport/transport_kind.h"
#include "kernels/kv_codecs.h"

namespace fastdecode {

struct SessionOptions {
  AttentionShape shape;
  int block_tokens = 32;
  kernels::KvCodes kv;    // how the R-workers hold keys and values
  int max_context = 0;    // tokens of one sequence at most, prompt and output
  int max_sequences = 0;  // that one R-worker may hold at a time
  int mini_batches = 2;
  int max_rows = 0;  // rows of one mini-batch on one R-worker at most; not above max_sequences

  int decode_slots_per_mini_batch = 2;       // StepBegin and the rows of a layer
  size_t bulk_slot_bytes = size_t{1} << 20;  // header included; raised to hold one row, rounded up to 64
  int bulk_send_slots = 8;
  int bulk_recv_slots = 16;  // acknowledgements waiting to be read

  int heartbeat_ms = 500;
  int peer_timeout_ms = 3000;
  TransportSettings transport;
  std::string name = "sworker";  // how R-workers call this S-worker in logs and refusals; at most 63 bytes
};

// The lanes' slots as the S-worker's endpoint has them: decode send slots hold max_rows
// QKV rows (or StepRows), decode receive slots have the same size.
std::array<LaneOptions, kNumLanes> SessionLanes(const SessionOptions& options);

}  // namespace fastdecode
