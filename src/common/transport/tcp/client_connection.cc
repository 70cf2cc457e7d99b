#include "common/transport/tcp/client_connection.h"

#include "common/transport/tcp/socket.h"

namespace fastdecode {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

}  // namespace

ClientConnection::ClientConnection(std::vector<SocketAddress> addresses, const AuthKey& key, Purpose purpose,
                                   uint32_t incarnation, std::string peer, int timeout_ms, const Clock& clock)
    : addresses_(std::move(addresses)),
      peer_(std::move(peer)),
      timeout_ms_(timeout_ms),
      clock_(clock),
      handshake_(key, purpose, incarnation, peer_) {}

ClientConnection::ClientConnection(Fd connected, const AuthKey& key, Purpose purpose, uint32_t incarnation,
                                   std::string peer, int timeout_ms, const Clock& clock)
    : peer_(std::move(peer)),
      timeout_ms_(timeout_ms),
      clock_(clock),
      handshake_(key, purpose, incarnation, peer_),
      channel_(std::move(connected), peer_),
      state_(State::kGreet) {}

Status ClientConnection::Advance() {
  while (state_ != State::kProven) FD_RETURN_IF_ERROR(Step());
  return OkStatus();
}

Status ClientConnection::Step() {
  switch (state_) {
    case State::kDial:
      return Dial();
    case State::kConnect:
      return Connect();
    case State::kGreet:
      return Greet();
    default:
      return Exchange();
  }
}

Status ClientConnection::Dial() {
  if (next_address_ == addresses_.size()) return last_failure_;
  deadline_ns_ = clock_.NowNs() + timeout_ms_ * kNsPerMs;
  Result<Fd> socket = DialTcp(addresses_[next_address_++]);
  if (!socket.ok()) {
    last_failure_ = socket.status();
    return OkStatus();
  }
  channel_ = ByteChannel(*std::move(socket), peer_);
  state_ = State::kConnect;
  return OkStatus();
}

Status ClientConnection::Connect() {
  pollfd fd = wants();
  poll(&fd, 1, 0);
  Status status;
  if (fd.revents != 0) {
    status = ConnectResult(channel_.fd(), peer_);
    if (status.ok()) status = TuneControl(channel_.fd(), timeout_ms_);
  } else if (clock_.NowNs() < deadline_ns_) {
    return {StatusCode::kWouldBlock, {}};
  } else {
    status = Status(StatusCode::kDeadlineExceeded,
                    "cannot connect to " + peer_ + ": no answer within " + std::to_string(timeout_ms_) + " ms");
  }
  if (!status.ok()) {
    last_failure_ = std::move(status);
    channel_.Close();
    state_ = State::kDial;
    return OkStatus();
  }
  state_ = State::kGreet;
  return OkStatus();
}

Status ClientConnection::Greet() {
  deadline_ns_ = clock_.NowNs() + timeout_ms_ * kNsPerMs;
  state_ = State::kChallenge;
  return channel_.Write(handshake_.hello());
}

Status ClientConnection::Exchange() {
  FD_RETURN_IF_ERROR(channel_.Flush());
  Reply reply;
  Status status = channel_.Read(reply);
  if (status.code() == StatusCode::kWouldBlock && clock_.NowNs() >= deadline_ns_) {
    return {StatusCode::kDeadlineExceeded, peer_ + " accepts connections but does not answer within " +
                                               std::to_string(timeout_ms_) + " ms (frozen, or no R-worker)"};
  }
  FD_RETURN_IF_ERROR(status);
  refused_ = true;  // unless what follows finds the reply good
  if (state_ == State::kChallenge) {
    FD_ASSIGN_OR_RETURN(Proof proof, handshake_.OnChallenge(reply));
    FD_RETURN_IF_ERROR(channel_.Write(proof));
    state_ = State::kVerdict;
  } else {
    FD_RETURN_IF_ERROR(handshake_.OnVerdict(reply));
    state_ = State::kProven;
  }
  refused_ = false;
  return OkStatus();
}

pollfd ClientConnection::wants() const {
  bool write = state_ == State::kConnect || channel_.wants_write();
  return {channel_.fd(), static_cast<short>(write ? POLLOUT | POLLIN : POLLIN), 0};
}

}  // namespace fastdecode
