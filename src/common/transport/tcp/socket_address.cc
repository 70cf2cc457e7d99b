#include "common/transport/tcp/socket_address.h"

#include <netdb.h>

#include <cstring>

namespace fastdecode {
namespace {

Result<std::vector<SocketAddress>> Lookup(const HostPort& host_port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  int error = getaddrinfo(host_port.host.c_str(), std::to_string(host_port.port).c_str(), &hints, &list);
  if (error != 0) {
    return NotFound("host \"" + host_port.host + "\": " + gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return addresses;
}

}  // namespace

Result<std::vector<SocketAddress>> ParseNumericAddress(const HostPort& host_port) {
  return Lookup(host_port, AI_NUMERICHOST);
}

Result<std::vector<SocketAddress>> ResolveAddress(const HostPort& host_port) { return Lookup(host_port, 0); }

std::string ToString(const SocketAddress& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address.get(), address.length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown address";
  }
  bool v6 = address.storage.ss_family == AF_INET6;
  return (v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

}  // namespace fastdecode
