// A connection that was accepted and has not yet become anything: it proves the key and,
// on a control connection, sends SessionOpen. It has a deadline, a few KiB of
// buffer, and never blocks the loop that owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/transport/tcp/byte_channel.h"
#include "common/wire/handshake.h"

namespace fastdecode::rworker {

class PendingConnection {
 public:
  enum class State {
    kHello,         // nothing believed yet
    kProof,         // challenged
    kOpen,          // knows the secret; SessionOpen is awaited
    kWantsSession,  // open() is there; the channel goes on as a control connection
    kIsStream,      // knows the session's key; the socket is a lane of it
    kRefused,       // reason() says why; the peer was told what it may know
  };

  // The key that this hello must prove, or null: no session waits for such a stream.
  using FindKey = std::function<const AuthKey*(const Hello& hello)>;

  PendingConnection(Fd socket, std::string peer, const AuthKey& secret, int64_t deadline_ns);

  // Goes on with what has arrived, as far as that reaches.
  State Advance(const FindKey& find_key);
  // Ends the wait; the reason is for the log.
  void Refuse(Status reason);
  // Tells an authenticated peer why there is no session.
  void RefuseSession(RefusalCode code, Status reason);

  State state() const { return state_; }
  const Status& reason() const { return reason_; }
  bool silent() const { return state_ == State::kHello && channel_.partial_bytes() == 0; }
  // Closed before it sent anything: somebody only looked whether the port is open.
  bool looked_only() const { return looked_only_; }
  int64_t deadline_ns() const { return deadline_ns_; }
  std::string DeadlineReason() const;
  ByteChannel& channel() { return channel_; }
  const ByteChannel& channel() const { return channel_; }
  const SessionOpen& open() const { return open_; }
  const Hello& hello() const { return handshake_.hello(); }
  Purpose purpose() const { return handshake_.purpose(); }
  AuthKey session_key() const { return handshake_.session_key(secret_); }

 private:
  Status Step(const FindKey& find_key);
  Status OnHello();
  Status OnProof(const FindKey& find_key);
  Status OnOpen();

  ByteChannel channel_;
  const AuthKey secret_;
  const int64_t deadline_ns_;
  State state_ = State::kHello;
  ServerHandshake handshake_;
  SessionOpen open_;
  Status reason_;
  bool looked_only_ = false;
};

}  // namespace fastdecode::rworker
