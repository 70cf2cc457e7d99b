#include "common/transport/negotiation.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace fastdecode {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

template <typename Frame>
Result<std::span<const std::byte>> BytesOf(const Frame& frame) {
  if (frame.size <= sizeof(frame.bytes)) return std::span<const std::byte>(frame.bytes, frame.size);
  return DataLoss("a transport's handshake of " + std::to_string(frame.size) + " bytes, at most " +
                  std::to_string(sizeof(frame.bytes)) + " fit");
}

template <typename Frame>
void SetBytes(Frame& frame, std::span<const std::byte> bytes) {
  const size_t size = std::min(bytes.size(), sizeof(frame.bytes));
  if (size > 0) std::memcpy(frame.bytes, bytes.data(), size);
  frame.size = static_cast<uint32_t>(size);
}

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

RefusalCode RefusalCodeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kUnimplemented:
      return RefusalCode::kUnsupported;
    case StatusCode::kResourceExhausted:
      return RefusalCode::kNoMemory;
    case StatusCode::kUnavailable:
      return RefusalCode::kBusy;
    default:
      return RefusalCode::kInvalid;
  }
}

StatusCode StatusCodeOf(RefusalCode code) {
  switch (code) {
    case RefusalCode::kUnsupported:
      return StatusCode::kUnimplemented;
    case RefusalCode::kNoMemory:
      return StatusCode::kResourceExhausted;
    case RefusalCode::kBusy:
      return StatusCode::kUnavailable;
    case RefusalCode::kInvalid:
      break;
  }
  return StatusCode::kInvalidArgument;
}

DialNegotiation::DialNegotiation(const Carriers& carriers, CarrierContext context)
    : carriers_(carriers), context_(std::move(context)) {
  const TransportKind wanted = carriers_.settings().kind;
  if (wanted == TransportKind::kAuto) {
    left_.assign(std::rbegin(kByPreference), std::rend(kByPreference));
  } else {
    left_.push_back(wanted);
  }
}

Result<ChosenTransport> DialNegotiation::Advance(ByteChannel& channel) {
  while (true) {
    ChosenTransport chosen;
    switch (state_) {
      case State::kNext:
        TryNext();
        break;
      case State::kOffering:
        FD_RETURN_IF_ERROR(Offer(channel));
        break;
      case State::kOffered:
        if (context_.clock->NowNs() < answer_deadline_ns_) return Status(StatusCode::kWouldBlock, {});
        GiveUp(Status(StatusCode::kDeadlineExceeded, context_.endpoint.peer + " does not answer the offer within " +
                                                         std::to_string(context_.answer_timeout_ms) + " ms"),
               false);
        break;
      case State::kMeeting:
        FD_RETURN_IF_ERROR(Meet(channel, &chosen));
        if (state_ == State::kReady) return chosen;
        break;
      case State::kReady:
        return Status(StatusCode::kWouldBlock, {});
      case State::kHopeless:
        return last_reason_;
    }
  }
}

void DialNegotiation::TryNext() {
  if (left_.empty()) {
    state_ = State::kHopeless;
    return;
  }
  kind_ = left_.back();
  left_.pop_back();
  if (Status status = carriers_.Check(kind_); !status.ok()) return GiveUp(status, true);
  end_ = carriers_.Find(kind_)->Dial(context_);
  state_ = State::kOffering;
}

// Errors are the control connection's.
Status DialNegotiation::Offer(ByteChannel& channel) {
  Result<CarrierBytes> bytes = end_->Offer();
  if (bytes.status().code() == StatusCode::kWouldBlock) return bytes.status();
  if (!bytes.ok()) {
    GiveUp(bytes.status(), true);
    return OkStatus();
  }
  TransportOffer offer;
  offer.kind = static_cast<uint16_t>(kind_);
  SetBytes(offer, *bytes);
  answer_deadline_ns_ = context_.clock->NowNs() + context_.answer_timeout_ms * kNsPerMs;
  state_ = State::kOffered;
  return channel.WriteFrame(offer);
}

Status DialNegotiation::OnAnswer(const TransportAnswer& answer) {
  FD_ASSIGN_OR_RETURN(std::span<const std::byte> bytes, BytesOf(answer));
  const bool awaited = state_ == State::kOffered || (state_ == State::kMeeting && answer.refusal != 0);
  // The last word about a kind that was given up already crosses the next offer.
  if (answer.kind != static_cast<uint16_t>(kind_) || !awaited) {
    return answer.refusal != 0 ? OkStatus() : DataLoss(context_.endpoint.peer + " accepts what was not offered");
  }
  if (answer.refusal != 0) {
    const auto code = static_cast<RefusalCode>(answer.refusal);
    GiveUp(Status(StatusCodeOf(code), context_.endpoint.peer + " refuses: " + CleanText(TextOf(bytes))),
           code != RefusalCode::kBusy);
    return OkStatus();
  }
  state_ = State::kMeeting;
  if (Status status = end_->OnAnswer(bytes); !status.ok()) GiveUp(status, false);
  return OkStatus();
}

Status DialNegotiation::Meet(ByteChannel& channel, ChosenTransport* chosen) {
  Result<std::unique_ptr<Endpoint>> endpoint = end_->Advance();
  if (endpoint.status().code() == StatusCode::kWouldBlock) return endpoint.status();
  if (!endpoint.ok()) {
    GiveUp(endpoint.status(), false);
    return OkStatus();
  }
  end_.reset();
  state_ = State::kReady;
  chosen->endpoint = *std::move(endpoint);
  chosen->kind = kind_;
  chosen->why = Why();
  TransportReady ready;
  ready.kind = static_cast<uint16_t>(kind_);
  SetText(ready.why, chosen->why);
  return channel.WriteFrame(ready);
}

void DialNegotiation::GiveUp(const Status& reason, bool refused) {
  end_.reset();
  rejected_ += std::string("; not ") + NameOf(kind_) + ": " + reason.message();
  last_reason_ = Status(reason.code(), std::string("transport ") + NameOf(kind_) + ": " + reason.message());
  refused_ = refused;
  state_ = State::kNext;
}

std::string DialNegotiation::Why() const {
  return carriers_.settings().kind == TransportKind::kAuto ? "auto" + rejected_ : "named by transport.kind";
}

void DialNegotiation::AppendWants(std::vector<pollfd>* fds) const {
  if (state_ == State::kOffering || state_ == State::kMeeting) end_->AppendWants(fds);
}

int64_t DialNegotiation::deadline_ns() const {
  if (state_ == State::kOffered) return answer_deadline_ns_;
  if (state_ == State::kMeeting) return end_->deadline_ns();
  return std::numeric_limits<int64_t>::max();
}

AcceptNegotiation::AcceptNegotiation(const Carriers& carriers, CarrierContext context)
    : carriers_(carriers), context_(std::move(context)) {}

Status AcceptNegotiation::Consider(TransportKind kind) {
  const TransportKind own = carriers_.settings().kind;
  if (own != TransportKind::kAuto && own != kind) {
    return {StatusCode::kUnimplemented, std::string("this R-worker was started with --transport ") + NameOf(own)};
  }
  FD_RETURN_IF_ERROR(carriers_.Check(kind));
  end_ = carriers_.Find(kind)->Accept(context_);
  return OkStatus();
}

Status AcceptNegotiation::OnOffer(const TransportOffer& offer, ByteChannel& channel) {
  FD_RETURN_IF_ERROR(BytesOf(offer).status());
  if (offer.kind == 0 || offer.kind > kMaxTransportKind) {
    return DataLoss("it offers the unknown transport " + std::to_string(offer.kind));
  }
  if (peer_ready_) return DataLoss("it offers a transport when one is in use");
  kind_ = static_cast<TransportKind>(offer.kind);
  endpoint_.reset();
  end_.reset();
  refusal_ = OkStatus();
  offer_ = offer;
  if (const Status status = Consider(kind_); !status.ok()) return Refuse(status, channel);
  return OkStatus();
}

Status AcceptNegotiation::Answer(ByteChannel& channel) {
  Result<CarrierBytes> bytes = end_->Answer(*BytesOf(*offer_));
  if (bytes.status().code() == StatusCode::kWouldBlock) return bytes.status();
  if (!bytes.ok()) return Refuse(bytes.status(), channel);
  offer_.reset();
  TransportAnswer answer;
  answer.kind = static_cast<uint16_t>(kind_);
  SetBytes(answer, *bytes);
  return channel.WriteFrame(answer);
}

Status AcceptNegotiation::Refuse(const Status& reason, ByteChannel& channel) {
  offer_.reset();
  end_.reset();
  refusal_ = reason;
  TransportAnswer answer;
  answer.kind = static_cast<uint16_t>(kind_);
  answer.refusal = static_cast<uint16_t>(RefusalCodeOf(reason.code()));
  SetBytes(answer, std::as_bytes(std::span(reason.message())));
  return channel.WriteFrame(answer);
}

Status AcceptNegotiation::OnReady(const TransportReady& ready) {
  if (!refusal_.ok() && ready.kind == static_cast<uint16_t>(kind_)) return refusal_;
  const bool agreed = !offer_.has_value() && (end_ != nullptr || endpoint_ != nullptr);
  if (peer_ready_ || ready.kind != static_cast<uint16_t>(kind_) || !agreed) {
    return DataLoss("it is ready with transport " + std::to_string(ready.kind) + ", which was not agreed");
  }
  peer_ready_ = true;
  why_ = GetText(ready.why);
  return OkStatus();
}

Result<ChosenTransport> AcceptNegotiation::Advance(ByteChannel& channel) {
  if (offer_.has_value()) FD_RETURN_IF_ERROR(Answer(channel));
  if (end_ != nullptr) {
    Result<std::unique_ptr<Endpoint>> endpoint = end_->Advance();
    if (endpoint.ok()) {
      endpoint_ = *std::move(endpoint);
      end_.reset();
    } else if (endpoint.status().code() != StatusCode::kWouldBlock) {
      if (peer_ready_) return endpoint.status();
      FD_RETURN_IF_ERROR(Refuse(endpoint.status(), channel));
    }
  }
  if (endpoint_ == nullptr || !peer_ready_) return Status(StatusCode::kWouldBlock, {});
  return ChosenTransport{std::move(endpoint_), kind_, why_};
}

void AcceptNegotiation::AppendWants(std::vector<pollfd>* fds) const {
  if (end_ != nullptr) end_->AppendWants(fds);
}

int64_t AcceptNegotiation::deadline_ns() const {
  return end_ != nullptr ? end_->deadline_ns() : std::numeric_limits<int64_t>::max();
}

}  // namespace fastdecode
