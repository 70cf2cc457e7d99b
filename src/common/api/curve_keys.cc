#include "common/api/curve_keys.h"

#include <sodium.h>

#include <string_view>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

CurveKeyPair Derive(std::span<const uint8_t, 32> secret, std::string_view purpose) {
  static_assert(crypto_box_PUBLICKEYBYTES == 32 && crypto_box_SECRETKEYBYTES == 32 && crypto_box_SEEDBYTES == 32);
  std::array<uint8_t, crypto_box_SEEDBYTES> seed;
  crypto_generichash(seed.data(), seed.size(), reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
                     secret.data(), secret.size());
  CurveKeyPair pair;
  crypto_box_seed_keypair(pair.public_key.data(), pair.secret_key.data(), seed.data());
  sodium_memzero(seed.data(), seed.size());
  return pair;
}

}  // namespace

CurveKeys DeriveCurveKeys(std::span<const uint8_t, 32> secret) {
  CHECK_GE(sodium_init(), 0) << "libsodium could not be initialised";
  return {Derive(secret, "fastdecode api server"), Derive(secret, "fastdecode api client")};
}

}  // namespace fastdecode
