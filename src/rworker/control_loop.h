// The control thread: accepts, lets peers prove themselves, and drives the SessionHost.
//
// One poll loop with a small state for each connection; no connection can make another
// wait. At most max_pending are unproven at a time: a new one then takes the place of
// the oldest.
//
// Thread rule: Run on one thread; Wake and Stop from any.
#pragma once

#include <poll.h>

#include <atomic>
#include <list>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/config/secret.h"
#include "rworker/pending_connection.h"
#include "rworker/session_host.h"

namespace fastdecode::rworker {

class ControlLoop {
 public:
  struct Options {
    Secret secret;
    int handshake_timeout_ms = 2000;  // from accept to the session or stream
    int max_pending = 64;
    SessionHost::Options host;  // environment.notify is set here
  };

  ControlLoop(Options options, Fd listener, Fd wake, const Clock& clock);

  // Returns after Stop, when the session has ended.
  void Run();
  void Wake();
  void Stop();

 private:
  void Wait();
  void Accept();
  void AdvancePending();
  void DropLate();
  void Refused(const PendingConnection& connection);
  int TimeoutMs() const;

  const Options options_;
  const Fd listener_;
  const Fd wake_;
  const Clock& clock_;
  SessionHost host_;
  std::list<PendingConnection> pending_;
  std::vector<pollfd> fds_;
  int64_t accept_again_ns_ = 0;  // out of descriptors until then
  std::atomic<bool> stop_{false};
};

}  // namespace fastdecode::rworker
