#include "rworker/pending_connection.h"

namespace fastdecode::rworker {

PendingConnection::PendingConnection(Fd socket, std::string peer, const AuthKey& secret, int64_t deadline_ns)
    : channel_(std::move(socket), std::move(peer)), secret_(secret), deadline_ns_(deadline_ns) {}

PendingConnection::State PendingConnection::Advance(const FindKey& find_key) {
  while (state_ == State::kHello || state_ == State::kProof || state_ == State::kOpen) {
    looked_only_ = silent();
    Status status = Step(find_key);
    if (status.code() == StatusCode::kWouldBlock) {
      looked_only_ = false;
      break;
    }
    if (!status.ok()) {
      looked_only_ = looked_only_ && status.code() == StatusCode::kUnavailable;
      Refuse(std::move(status));
    }
  }
  return state_;
}

Status PendingConnection::Step(const FindKey& find_key) {
  switch (state_) {
    case State::kHello:
      return OnHello();
    case State::kProof:
      return OnProof(find_key);
    default:
      return OnOpen();
  }
}

Status PendingConnection::OnHello() {
  Hello hello;
  FD_RETURN_IF_ERROR(channel_.Read(hello));
  Result<Reply> challenge = handshake_.OnHello(hello);
  if (!challenge.ok()) {
    bool version = challenge.status().code() == StatusCode::kInvalidArgument;
    if (version) (void)channel_.Write(MakeRefusal(ReplyCode::kRefusedVersion));
    return challenge.status();
  }
  state_ = State::kProof;
  return channel_.Write(*challenge);
}

Status PendingConnection::OnProof(const FindKey& find_key) {
  Proof proof;
  FD_RETURN_IF_ERROR(channel_.Read(proof));
  const AuthKey* key = find_key(handshake_.hello());
  if (key == nullptr) {
    (void)channel_.Write(MakeRefusal(ReplyCode::kRefusedStream));
    return InvalidArgument("a data stream of incarnation " + std::to_string(handshake_.hello().incarnation) +
                           ", for which no session waits");
  }
  Result<Reply> accepted = handshake_.OnProof(*key, proof);
  if (!accepted.ok()) {
    (void)channel_.Write(MakeRefusal(ReplyCode::kRefusedProof));
    return accepted.status();
  }
  state_ = purpose() == Purpose::kControl ? State::kOpen : State::kIsStream;
  return channel_.Write(*accepted);
}

Status PendingConnection::OnOpen() {
  ByteChannel::Frame frame;
  FD_RETURN_IF_ERROR(channel_.ReadFrame(frame));
  if (frame.type != FrameType::kSessionOpen) {
    return DataLoss("a control frame of type " + std::to_string(static_cast<int>(frame.type)) +
                    " where SessionOpen was expected");
  }
  open_ = frame.as<SessionOpen>();
  state_ = State::kWantsSession;
  return OkStatus();
}

void PendingConnection::Refuse(Status reason) {
  reason_ = std::move(reason);
  state_ = State::kRefused;
}

void PendingConnection::RefuseSession(RefusalCode code, Status reason) {
  Refusal refusal;
  refusal.code = static_cast<uint32_t>(code);
  SetText(refusal.text, reason.message());
  (void)channel_.WriteFrame(refusal);
  Refuse(std::move(reason));
}

std::string PendingConnection::DeadlineReason() const {
  switch (state_) {
    case State::kHello:
      return "it sent " + std::to_string(channel_.partial_bytes()) + " of " + std::to_string(sizeof(Hello)) +
             " bytes of its hello in time";
    case State::kProof:
      return "it did not answer the challenge in time";
    default:
      return "it knows the secret but did not ask for a session in time";
  }
}

}  // namespace fastdecode::rworker
