// The seam of the transports: how an Endpoint of one kind is made on either side.
//
// A Carrier is one kind (tcp, shm, verbs). When both ends of a control connection have
// proven the secret and the session is granted, the S-worker's side makes a DialingEnd and
// the R-worker's an AcceptingEnd, and the control connection carries two pieces of bytes
// that only the carrier reads (negotiation.h does the rest):
//
//   S: Offer()   -- TransportOffer  -->  R: Answer(offer)
//   S: OnAnswer(answer)  <-- TransportAnswer --  R: what Answer returned, or why not
//   both: Advance() until it returns the Endpoint
//   S, once its Endpoint is there, -- TransportReady -->  R serves when its own is there, too
//
// Whoever fails says why in one sentence; then the next kind is tried, or, if this one was
// named, the session is refused. An end that is destroyed before it gave its Endpoint away
// leaves nothing behind: no descriptor, no mapping, no registered memory.
//
// Thread rule: all calls come from the control thread. None of them may wait: what takes long
// (memory) is kWouldBlock until it is there.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/transport/tcp/socket_address.h"
#include "common/transport/transport.h"
#include "common/transport/transport_kind.h"
#include "common/wire/control.h"

namespace fastdecode {

// At most kMaxCarrierBytes (control.h).
using CarrierBytes = std::vector<std::byte>;

// Memory for the slots of one endpoint, 64-byte aligned; null if there is none. On a GPU
// node pinned, else on huge pages if there are any. Called on any thread.
using AllocateSlots = std::function<std::shared_ptr<std::byte[]>(size_t bytes)>;
std::shared_ptr<std::byte[]> AllocatePageableSlots(size_t bytes);

// What both sides know when they make an endpoint.
struct CarrierContext {
  EndpointOptions endpoint;              // lanes as this side has them, incarnation, the peer's name
  AuthKey session_key{};                 // proves that whoever comes belongs to this session
  AllocateSlots allocate;                // for carriers whose slots are not memory of their own
  std::vector<SocketAddress> addresses;  // of the R-worker's port; the S-worker's side only
  int timeout_ms = 3000;                 // for each step that waits for the peer
  int answer_timeout_ms = 30'000;        // for the answer: the peer may have to make its memory ready
  const Clock* clock = nullptr;
};

// The memory of an endpoint's slots; kResourceExhausted with the number.
Result<std::shared_ptr<std::byte[]>> MakeSlots(const CarrierContext& context);

class CarrierEnd {
 public:
  virtual ~CarrierEnd() = default;
  // Goes on as far as that is possible now. The endpoint, once; kWouldBlock: call again when
  // the descriptors of AppendWants or deadline_ns() say so; else why there will be none.
  virtual Result<std::unique_ptr<Endpoint>> Advance() = 0;
  virtual void AppendWants(std::vector<pollfd>* fds) const = 0;
  virtual int64_t deadline_ns() const { return std::numeric_limits<int64_t>::max(); }
  // Its memory is being made on another thread: who destroys this meanwhile waits for that.
  virtual bool busy() const { return false; }
};

// The S-worker's side.
class DialingEnd : public CarrierEnd {
 public:
  // kWouldBlock: call again, as for Advance.
  virtual Result<CarrierBytes> Offer() = 0;
  virtual Status OnAnswer(std::span<const std::byte> answer) = 0;
};

// The R-worker's side.
class AcceptingEnd : public CarrierEnd {
 public:
  // The answer. From it on the end must be ready for what the S-worker does next. kWouldBlock: call again with the
  // same offer, as for Advance.
  virtual Result<CarrierBytes> Answer(std::span<const std::byte> offer) = 0;
  // Whether a stream of this lane is awaited at the R-worker's port: only tcp's are.
  virtual bool WantsStream(Lane) const { return false; }
  // A connection of that lane which has proven the session's key.
  virtual void TakeStream(Lane, Fd) {}
};

class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual TransportKind kind() const = 0;
  // Ok, or in a sentence why this process cannot use it now: no device, a limit too low.
  virtual Status Available() const = 0;
  virtual std::unique_ptr<DialingEnd> Dial(const CarrierContext& context) const = 0;
  virtual std::unique_ptr<AcceptingEnd> Accept(const CarrierContext& context) const = 0;
};

// The carriers of this build, best first. Made once by a process; any thread may read it.
class Carriers {
 public:
  explicit Carriers(const TransportSettings& settings);

  const TransportSettings& settings() const { return settings_; }
  // Null: not in this build.
  const Carrier* Find(TransportKind kind) const;
  // Ok if this kind (or auto) can be had here; else the sentence for the user.
  Status Check(TransportKind kind) const;

 private:
  const TransportSettings settings_;
  std::vector<std::unique_ptr<Carrier>> carriers_;
};

// The order in which auto tries.
inline constexpr TransportKind kByPreference[] = {TransportKind::kVerbs, TransportKind::kShm, TransportKind::kTcp};

}  // namespace fastdecode
