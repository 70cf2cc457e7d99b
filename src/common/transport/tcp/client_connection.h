// A connection to an R-worker (TCP, or any other stream socket) from dialling to the mutual proof, without ever
// waiting.
//
// Thread rule: one owner thread.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/transport/tcp/byte_channel.h"
#include "common/transport/tcp/socket_address.h"
#include "common/wire/handshake.h"

namespace fastdecode {

class ClientConnection {
 public:
  // Tries the addresses one after the other; each has timeout_ms to connect, and the
  // handshake has timeout_ms again. peer: "rworker cpu01:7200", for messages.
  ClientConnection(std::vector<SocketAddress> addresses, const AuthKey& key, Purpose purpose, uint32_t incarnation,
                   std::string peer, int timeout_ms, const Clock& clock);

  // The handshake alone, over a socket that is connected already.
  ClientConnection(Fd connected, const AuthKey& key, Purpose purpose, uint32_t incarnation, std::string peer,
                   int timeout_ms, const Clock& clock);

  // Ok: both ends have proven themselves. kWouldBlock: call again when pollfds() or
  // deadline_ns() say so. Else why it failed; refused() tells whether the peer said no.
  Status Advance();

  pollfd wants() const;
  int64_t deadline_ns() const { return deadline_ns_; }
  bool refused() const { return refused_; }
  ByteChannel& channel() { return channel_; }
  AuthKey session_key() const { return handshake_.session_key(); }
  const std::vector<SocketAddress>& addresses() const { return addresses_; }

 private:
  enum class State {
    kDial,       // the next address is to be tried
    kConnect,    // TCP is connecting
    kGreet,      // connected
    kChallenge,  // Hello is sent
    kVerdict,    // Proof is sent
    kProven,
  };
  Status Step();
  Status Dial();
  Status Connect();
  Status Greet();
  Status Exchange();

  const std::vector<SocketAddress> addresses_;
  const std::string peer_;
  const int timeout_ms_;
  const Clock& clock_;
  ClientHandshake handshake_;
  ByteChannel channel_;
  State state_ = State::kDial;
  size_t next_address_ = 0;
  Status last_failure_;
  int64_t deadline_ns_ = 0;
  bool refused_ = false;
};

}  // namespace fastdecode
