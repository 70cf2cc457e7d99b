// What the API server needs from the core of the S-worker. Implemented by the
// serving core; every call comes from the API thread and must not block on work:
// hand over, return.
#pragma once

#include <nlohmann/json.hpp>

#include "sworker/request.h"

namespace fastdecode {

class RequestSink {
 public:
  virtual ~RequestSink() = default;

  // The request is well-formed and valid (ValidateRequest), its id and seed are set. The
  // sink answers every one with exactly one RequestFinished through ApiServer::Publish,
  // whatever happens: refused by the scheduler, cancelled, lost, shut down.
  virtual void Submit(Request request) = 0;

  // The client, or the end of its connection, wants no more of it. Still answered with a
  // RequestFinished (kCancelled, or what came first). Unknown ids are ignored.
  virtual void Cancel(SequenceId id) = 0;

  // docs/protocol.md names the fields: "window", "config", "scheduler", "rworkers".
  virtual nlohmann::json Stats() = 0;

  // Stats()["window"] counts from now on.
  virtual void ResetWindow() = 0;
};

}  // namespace fastdecode
