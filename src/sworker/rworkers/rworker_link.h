// One R-worker as the pool sees it: a state machine from dialling to loss and round again.
//
// Thread rule: the control thread's, except stats() and status(), which any may call.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/config/address.h"
#include "common/config/secret.h"
#include "common/transport/negotiation.h"
#include "common/transport/tcp/client_connection.h"
#include "sworker/rworkers/resolver.h"
#include "sworker/rworkers/rworker_pool.h"

namespace fastdecode {

class RWorkerLink {
 public:
  // Shared by all links of a pool, which owns it.
  struct Context {
    Secret secret;
    SessionOptions options;
    std::shared_ptr<const Carriers> carriers;
    AllocateSlots allocate;
    RWorkerCallbacks callbacks;
    Resolver* resolver = nullptr;
    const Clock* clock = nullptr;
  };

  RWorkerLink(const Context& context, int index, std::string address, HostPort host_port);

  // Whatever is due: bytes that came, deadlines that passed.
  void Advance();
  void AppendWants(std::vector<pollfd>& fds) const;
  int64_t next_deadline_ns() const;

  void ReportLost(uint32_t incarnation, const Status& reason);
  void Goodbye();

  RWorkerStats stats() const;
  // Ok while joined; else why not. `final`: the peer said no, and waiting won't mend it.
  struct State {
    Status status;
    bool final = false;
  };
  State state() const;
  const std::string& address() const { return address_; }

 private:
  enum class Stage {
    kWaiting,    // until retry_ns_
    kResolving,  // the host's name is being looked up
    kControl,    // the control connection is being made
    kOpening,    // SessionOpen is sent
    kTransport,  // granted; which transport, and its two ends meet
    kJoined,     // the engine has the endpoint
  };

  Status Step();  // ok: go on; kWouldBlock: nothing more to do now
  Status Begin();
  Status TakeAddresses();
  Status ProveControl();
  Status ReadControl();
  Status OnFrame(const ByteChannel::Frame& frame);
  Status OnGrant(const SessionGrant& grant);
  Status OnRefusal(const Refusal& refusal);
  Status OnTransportAnswer(const TransportAnswer& answer);
  Status AgreeOnTransport();
  void Join(ChosenTransport chosen);
  Status WatchPeer();
  void OnHeartbeat(const Heartbeat& heartbeat);
  void Fail(Status reason);
  void EndNegotiation();
  void SetState(Status status, bool final);
  bool HasSession() const { return stage_ >= Stage::kOpening; }

  const Context& context_;
  const int index_;
  const std::string address_;
  const HostPort host_port_;
  const std::string peer_;  // "rworker cpu01:7200"
  const Clock& clock_;

  Stage stage_ = Stage::kWaiting;
  int64_t retry_ns_ = 0;
  int backoff_ms_ = 0;
  std::vector<SocketAddress> addresses_;
  std::optional<ClientConnection> control_;
  std::optional<DialNegotiation> negotiation_;
  // Of an attempt that failed while memory was made for it: no other thread's work is waited for here, and the next
  // attempt begins when it is done.
  std::unique_ptr<DialingEnd> leftover_;
  RWorkerGrant grant_;
  AuthKey session_key_{};
  bool final_refusal_ = false;  // of the attempt in progress
  int64_t last_heard_ns_ = 0;
  int64_t next_heartbeat_ns_ = 0;
  std::string last_logged_;

  mutable std::mutex mutex_;
  RWorkerStats stats_;  // under mutex_
  State state_;         // under mutex_
};

}  // namespace fastdecode
