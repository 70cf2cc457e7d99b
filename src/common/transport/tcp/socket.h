// Nonblocking TCP sockets: listen, accept, dial.
#pragma once

#include <string>

#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/transport/tcp/socket_address.h"

namespace fastdecode {

// Listens on the first of the addresses that can be bound.
Result<Fd> ListenTcp(const HostPort& host_port);

// The next waiting connection, or kWouldBlock.
struct Accepted {
  Fd socket;
  SocketAddress peer;
};
Result<Accepted> AcceptTcp(int listener);

// Starts to connect. The socket becomes writable when it is done; then ask ConnectResult.
Result<Fd> DialTcp(const SocketAddress& address);
// Ok, or why connecting failed.
Status ConnectResult(int socket, const std::string& peer);

// For a control connection: no delay; a peer that is gone without a word (host down, cable
// cut) is an error after about timeout_ms, whether we send or only listen.
Status TuneControl(int socket, int timeout_ms);
// For a data stream: no delay, and no deadline of its own. Its reader may be busy for long
// (a prefill), which TCP_USER_TIMEOUT would take for death; the control connection knows.
Status TuneStream(int socket);

Result<SocketAddress> LocalAddress(int socket);

// errno in the user's words: "connection refused: nothing listens there".
std::string DescribeErrno(int error);

}  // namespace fastdecode
