// HOST:PORT as configs, flags and messages write it; IPv6 hosts stand in brackets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace fastdecode {

struct HostPort {
  std::string host;  // a name, 127.0.0.1 or ::1 (without the brackets)
  uint16_t port = 0;
  std::string ToString() const;  // "[::1]:7200"
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Syntax only; no name is looked up. Port 0 parses: whether it means anything is the caller's matter.
Result<HostPort> ParseHostPort(std::string_view text);

// "tcp://HOST:PORT".
Result<HostPort> ParseTcpUrl(std::string_view text);

}  // namespace fastdecode
