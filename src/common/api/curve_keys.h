// CURVE key pairs of the API, derived from the cluster's secret: whoever knows the
// secret can make both, and nobody else either. docs/protocol.md states how.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace fastdecode {

struct CurveKeyPair {
  std::array<uint8_t, 32> public_key{};
  std::array<uint8_t, 32> secret_key{};
};

struct CurveKeys {
  CurveKeyPair server;
  CurveKeyPair client;  // The only client key that a server admits.
};

// X25519 pairs from seeds BLAKE2b-256(key = secret, "fastdecode api server" | "... client").
CurveKeys DeriveCurveKeys(std::span<const uint8_t, 32> secret);

}  // namespace fastdecode
