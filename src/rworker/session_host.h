// The one S-worker that this R-worker serves: its control connection, its streams as they
// come, heartbeats both ways, and the Session behind them.
//
// Thread rule: the control thread's. It never computes and never waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/transport/negotiation.h"
#include "rworker/pending_connection.h"
#include "rworker/session.h"

namespace fastdecode::rworker {

class SessionHost {
 public:
  enum class Stage {
    kIdle,       // no S-worker
    kOpening,    // the session sets its cache up
    kTransport,  // granted; which transport, and its two ends meet
    kServing,    // data flows
    kEnding,     // the session's threads finish; then idle
  };

  struct Options {
    TransportSettings transport;
    Session::Environment environment;
    int64_t max_buffer_memory = 0;
    std::optional<AttentionShape> model_shape;  // the only one that is served; none: any
    int64_t kv_memory = 0;
    std::string hostname;
    std::string kernel;
    uint32_t first_incarnation = 1;
  };

  SessionHost(Options options, const Clock& clock);
  ~SessionHost();

  // A peer that knows the secret asks for a session; takes its channel, or refuses it.
  void Open(PendingConnection& connection);
  // The session's key, if this hello's stream is one that is awaited.
  const AuthKey* StreamKey(const Hello& hello) const;
  void Attach(PendingConnection& connection);

  void OnControlReadable();
  void OnControlWritable();
  void OnTransport();  // whatever AppendWants waited for
  void OnNotify();     // the session's threads have news
  void OnTime();       // heartbeats and deadlines

  // Tells the S-worker; the session is gone when stage() is kIdle.
  void Shutdown();

  Stage stage() const { return stage_; }
  int control_fd() const { return control_.fd(); }   // -1: none
  void AppendWants(std::vector<pollfd>* fds) const;  // beside control_fd()
  bool wants_write() const { return control_.wants_write(); }
  int64_t next_deadline_ns() const;

 private:
  void Begin(PendingConnection& connection, SessionPlan plan);
  std::string BusyReason(const SessionOpen& open) const;
  void OnOpened(const Result<KvStats>& opened);
  Status CheckTransport(TransportKind wanted) const;
  CarrierContext MakeContext() const;
  void StartServing(ChosenTransport chosen);
  void End(Status reason, bool tell_peer);
  void Finish();
  Status ReadFrames();
  Status OnFrame(const ByteChannel::Frame& frame);

  const Options options_;
  const Clock& clock_;
  const Carriers carriers_;
  Stage stage_ = Stage::kIdle;
  uint32_t next_incarnation_;

  // Of the present session.
  std::unique_ptr<Session> session_;
  SessionPlan plan_;
  ByteChannel control_;
  AuthKey session_key_{};
  uint32_t incarnation_ = 0;
  std::optional<AcceptNegotiation> negotiation_;  // in stage kTransport
  std::string who_;                               // S-worker "name" at 127.0.0.1:40000
  int64_t began_ns_ = 0;
  int64_t last_heard_ns_ = 0;
  int64_t next_heartbeat_ns_ = 0;
  Status end_reason_;
};

}  // namespace fastdecode::rworker
