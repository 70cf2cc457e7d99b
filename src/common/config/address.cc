#include "common/config/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace fastdecode {
namespace {

bool IsIpv6(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

bool IsNameOrIpv4(const std::string& host) {
  if (host.empty() || host.size() > 253) return false;
  const bool numeric = host.find_first_not_of("0123456789.") == std::string::npos;
  if (numeric) {
    in_addr ignored;
    return inet_pton(AF_INET, host.c_str(), &ignored) == 1;
  }
  return std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  });
}

Status Malformed(std::string_view text) {
  return InvalidArgument("\"" + std::string(text.substr(0, 80)) +
                         "\" is not HOST:PORT; expected for example cpu01:7200, 127.0.0.1:7200 or [::1]:7200");
}

}  // namespace

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Malformed(text);
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);

  HostPort address{std::string(host), 0};
  if (!(bracketed ? IsIpv6(address.host) : IsNameOrIpv4(address.host))) return Malformed(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (error != std::errc() || end != digits.data() + digits.size()) return Malformed(text);
  return address;
}

Result<HostPort> ParseTcpUrl(std::string_view text) {
  constexpr std::string_view kScheme = "tcp://";
  if (!text.starts_with(kScheme)) {
    return InvalidArgument("\"" + std::string(text.substr(0, 80)) +
                           "\" is not tcp://HOST:PORT; expected for example tcp://127.0.0.1:7100");
  }
  return ParseHostPort(text.substr(kScheme.size()));
}

}  // namespace fastdecode
