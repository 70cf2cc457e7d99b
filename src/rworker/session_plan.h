// What an S-worker asks for at the handshake, checked against this R-worker's limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/model_shape.h"
#include "common/base/status.h"
#include "common/transport/transport.h"
#include "common/transport/transport_kind.h"
#include "common/wire/control.h"
#include "kernels/kv_codecs.h"
#include "rworker/attention_service.h"

namespace fastdecode::rworker {

struct SessionPlan {
  AttentionShape shape;
  SessionLimits limits;
  kernels::KvCodes kv;       // formats of the cache, which this build has
  EndpointOptions endpoint;  // lanes as this side has them; incarnation and peer are filled in later
  TransportKind transport = TransportKind::kAuto;  // what the S-worker was told to use
  int heartbeat_ms = 0;
  int peer_timeout_ms = 0;
  std::string name;  // of the S-worker
};

// kInvalidArgument: out of bounds or contradictory. kUnimplemented: not in this build.
// kResourceExhausted: buffers above max_buffer_memory. `only`: refuses every other shape.
Result<SessionPlan> PlanSession(const SessionOpen& open, int64_t max_buffer_memory,
                                const std::optional<AttentionShape>& only = std::nullopt);

// Bytes of a cached token, all layers.
int64_t KvTokenBytes(const SessionPlan& plan);

// As asked for, unchecked.
AttentionShape ShapeOf(const SessionOpen& open);

}  // namespace fastdecode::rworker
