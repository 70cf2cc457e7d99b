// Which transport carries a session's rows: the two sides of that exchange on a control
// connection whose ends have proven the secret. See carrier.h for the messages.
//
// The S-worker leads. A named kind is used or refused, by either side, and never replaced;
// with auto the kinds are tried in order of preference, and what kept the better ones out is
// told with the one that is used.
//
// Thread rule: the control thread's. Nothing here waits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/transport/carrier.h"
#include "common/transport/tcp/byte_channel.h"

namespace fastdecode {

struct ChosenTransport {
  std::unique_ptr<Endpoint> endpoint;
  TransportKind kind = TransportKind::kAuto;
  std::string why;  // "named", "auto; not verbs: no RDMA device here"
};

// The S-worker's side of one session.
class DialNegotiation {
 public:
  enum class State {
    kNext,      // a kind is to be offered
    kOffering,  // its offer is being made
    kOffered,   // its answer is awaited
    kMeeting,   // accepted; the two ends of the carrier meet
    kReady,     // the endpoint was given away
    kHopeless,  // no kind is left
  };

  DialNegotiation(const Carriers& carriers, CarrierContext context);

  // Goes on as far as that reaches; offers go out through the channel. The endpoint, once;
  // kWouldBlock; or why there is none.
  Result<ChosenTransport> Advance(ByteChannel& channel);
  // kDataLoss: the peer breaks the protocol. A refusal is no error: Advance goes on.
  Status OnAnswer(const TransportAnswer& answer);

  State state() const { return state_; }
  // Somebody said no in a way that waiting does not mend.
  bool refused() const { return refused_; }
  // What is left of a negotiation that is given up; null: nothing.
  std::unique_ptr<DialingEnd> TakeEnd() { return std::move(end_); }
  void AppendWants(std::vector<pollfd>* fds) const;
  int64_t deadline_ns() const;

 private:
  void TryNext();
  Status Offer(ByteChannel& channel);
  Status Meet(ByteChannel& channel, ChosenTransport* chosen);
  void GiveUp(const Status& reason, bool refused);  // the present kind; Advance tries the next
  std::string Why() const;

  const Carriers& carriers_;
  const CarrierContext context_;
  State state_ = State::kNext;
  std::vector<TransportKind> left_;  // to be tried, the next one last
  TransportKind kind_ = TransportKind::kAuto;
  std::unique_ptr<DialingEnd> end_;
  int64_t answer_deadline_ns_ = 0;
  std::string rejected_;  // "; not verbs: ..." for each kind that was out
  Status last_reason_;
  bool refused_ = false;
};

// The R-worker's side of one session.
class AcceptNegotiation {
 public:
  AcceptNegotiation(const Carriers& carriers, CarrierContext context);

  // What the S-worker sends; Advance answers. Errors end the session; a kind that is refused does not.
  Status OnOffer(const TransportOffer& offer, ByteChannel& channel);
  Status OnReady(const TransportReady& ready);
  // The endpoint, once, when both ends have theirs; kWouldBlock; or an error that ends the session.
  Result<ChosenTransport> Advance(ByteChannel& channel);

  bool WantsStream(Lane lane) const { return end_ != nullptr && end_->WantsStream(lane); }
  void TakeStream(Lane lane, Fd socket) { end_->TakeStream(lane, std::move(socket)); }
  void AppendWants(std::vector<pollfd>* fds) const;
  int64_t deadline_ns() const;

 private:
  Status Consider(TransportKind kind);
  Status Answer(ByteChannel& channel);
  Status Refuse(const Status& reason, ByteChannel& channel);

  const Carriers& carriers_;
  const CarrierContext context_;
  TransportKind kind_ = TransportKind::kAuto;
  std::optional<TransportOffer> offer_;  // not answered yet
  std::unique_ptr<AcceptingEnd> end_;
  std::unique_ptr<Endpoint> endpoint_;
  bool peer_ready_ = false;
  std::string why_;
  Status refusal_;  // of kind_
};

RefusalCode RefusalCodeOf(StatusCode code);
StatusCode StatusCodeOf(RefusalCode code);

}  // namespace fastdecode
