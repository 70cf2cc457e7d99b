// Expected keys: Python's hashlib.blake2b(purpose, key=secret, digest_size=32), then
// sha512()[:32] as the secret key and pyzmq's curve_public() of it.
#include "common/api/curve_keys.h"

#include <gtest/gtest.h>

#include <string>

namespace fastdecode {
namespace {

std::string Hex(const std::array<uint8_t, 32>& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(CurveKeys, AreThoseThatPythonDerives) {
  std::array<uint8_t, 32> secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
  const CurveKeys keys = DeriveCurveKeys(secret);
  // libsodium's secret keys are the unclamped hash, as Python's are here.
  EXPECT_EQ(Hex(keys.server.secret_key), "13a0d774428165788df9619e5dabb7c1fbb2f32fdbd6b2dd33ad5923f25bd283");
  EXPECT_EQ(Hex(keys.server.public_key), "a33b750d7d6b02051541039d70aea19bc4a221cf083e1b75288febf0e35d050b");
  EXPECT_EQ(Hex(keys.client.secret_key), "0b00f8fe375a6867c086c5cd6ecf74767aa4afae8dda70dd228db9e13c35a486");
  EXPECT_EQ(Hex(keys.client.public_key), "cdf92e09976916b17f931a66f5ec89559d2908c8ba3cf2a1e97c99e4f7d39709");
}

TEST(CurveKeys, AnotherSecretGivesOthers) {
  std::array<uint8_t, 32> secret{};
  const CurveKeys keys = DeriveCurveKeys(secret);
  secret[31] ^= 1;
  const CurveKeys others = DeriveCurveKeys(secret);
  EXPECT_NE(keys.server.public_key, others.server.public_key);
  EXPECT_NE(keys.client.public_key, others.client.public_key);
  EXPECT_NE(keys.server.secret_key, keys.client.secret_key);
}

}  // namespace
}  // namespace fastdecode
