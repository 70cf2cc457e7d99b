#include "common/transport/transport_kind.h"

namespace fastdecode {

const char* NameOf(TransportKind kind) {
  switch (kind) {
    case TransportKind::kAuto:
      return "auto";
    case TransportKind::kTcp:
      return "tcp";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kVerbs:
      return "verbs";
  }
  return "unknown";
}

Result<TransportKind> ParseTransportKind(std::string_view name) {
  for (uint16_t number = 0; number <= kMaxTransportKind; ++number) {
    const auto kind = static_cast<TransportKind>(number);
    if (name == NameOf(kind)) return kind;
  }
  return InvalidArgument("\"" + std::string(name) + "\" is no transport; expected auto, tcp, shm or verbs");
}

TransportSettings MakeTransportSettings(const TransportOptions& options) {
  TransportSettings settings;
  settings.kind = ParseTransportKind(options.kind).value();  // the config knows no other names
  settings.verbs = options.verbs;
  settings.spin_us = options.spin_us;
  return settings;
}

}  // namespace fastdecode
