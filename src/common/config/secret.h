// The secret that every process of a cluster proves to know before a port serves it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace fastdecode {

struct Secret {
  std::array<uint8_t, 32> key{};  // BLAKE2b-256 of the file's contents without the white space around them
};

// Reads a secret file: 32 to 4096 bytes of text or hex that only its owner may read.
// kNotFound: there is none. kPermissionDenied: we, or others too, may (not) read it.
// kInvalidArgument: too short, too long or not a regular file. Each says what to do.
Result<Secret> LoadSecret(const std::string& path);

}  // namespace fastdecode
