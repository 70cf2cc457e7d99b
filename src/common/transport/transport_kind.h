// The kinds of transport by name and by their number on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/config/config.h"

namespace fastdecode {

// The numbers are the wire's (docs/wire.md).
enum class TransportKind : uint16_t {
  kAuto = 0,   // the first of verbs, shm, tcp that both ends can use
  kTcp = 1,    // everywhere
  kShm = 2,    // shared memory: both ends on one host
  kVerbs = 3,  // RDMA
};
inline constexpr uint16_t kMaxTransportKind = 3;

// "auto", "tcp", "shm", "verbs".
const char* NameOf(TransportKind kind);
Result<TransportKind> ParseTransportKind(std::string_view name);

// What a config or a command line says about transports; each carrier reads its part.
struct TransportSettings {
  TransportKind kind = TransportKind::kAuto;
  VerbsOptions verbs;
  // How long the owner of an endpoint polls before it sleeps, in microseconds: shm and
  // verbs. Saves the system calls of sleeping and waking, costs a CPU meanwhile.
  int spin_us = 0;  // kAutoSpin is to be resolved before carriers are made (spin.h)
};
TransportSettings MakeTransportSettings(const TransportOptions& options);

}  // namespace fastdecode
