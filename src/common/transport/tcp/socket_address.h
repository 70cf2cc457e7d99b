// Socket addresses: from HOST:PORT, and as text.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/address.h"

namespace fastdecode {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// Numeric hosts only, so that it never waits for a name server; kNotFound for a name.
Result<std::vector<SocketAddress>> ParseNumericAddress(const HostPort& host_port);
// May wait for a name server for seconds. Never empty.
Result<std::vector<SocketAddress>> ResolveAddress(const HostPort& host_port);

// "127.0.0.1:7200", "[::1]:7200".
std::string ToString(const SocketAddress& address);

}  // namespace fastdecode
