// From a message to the AttentionService and back to the answer.
//
// Sizes are checked against the session's limits here; what the numbers mean (which
// sequence, which position), AttentionService checks.
//
// Thread rule: the compute thread's.
#pragma once

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/transport.h"
#include "rworker/attention_service.h"
#include "rworker/session_counters.h"
#include "rworker/workload_meter.h"

namespace fastdecode::rworker {

class MessageHandler {
 public:
  // Borrows service and counters.
  MessageHandler(AttentionService* service, SessionCounters* counters, const Clock& clock = SteadyClock::Get());

  // Whether an answer goes back, on the message's own lane; kDataLoss for a type that no
  // S-worker sends on that lane.
  static Result<bool> NeedsReply(const RecvSlot& in);

  // `out`: a send slot of the same lane for messages that NeedsReply; its header and
  // payload are written. Any error ends the session. No allocation unless it fails.
  Status Handle(const RecvSlot& in, const SendSlot& out);

 private:
  Status StepBegin(const RecvSlot& in);
  Status QkvRows(const RecvSlot& in, const SendSlot& out);
  Status KvAppend(const RecvSlot& in);
  Status PrefillDone(const RecvSlot& in, const SendSlot& out);
  Status Free(const RecvSlot& in, const SendSlot& out);
  void PublishStats();
  void PublishBeyondRange(const KvStats& stats);  // warns at the first

  AttentionService& service_;
  SessionCounters& counters_;
  const Clock& clock_;
  WorkloadMeter workload_;
};

}  // namespace fastdecode::rworker
