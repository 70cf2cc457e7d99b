// The formats of this build by name and by code: the built-in ones of kv_format.h and
// those that users wrote and compiled in (CMake's FASTDECODE_KV_CODECS,
// docs/kv_formats.md). Configs have names, the handshake has codes.
//
// What a cache takes is known here without any kernel, so that a config can be checked
// where no kernel is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention_kernel.h"
#include "kernels/kv_format.h"

namespace fastdecode::kernels {

inline constexpr uint8_t kFirstUserCode = 64;  // to 255; below are the built-in formats, 1 and up

// A format of a user's own. The file my_codec.cc defines it, as a constant, under the file's name:
//   namespace fastdecode::kernels {
//   extern const UserCodec my_codec;
//   constinit const UserCodec my_codec = {"mine", 64, {...}, {...}};
//   }
// Its functions are called with every kernel.
struct UserCodec {
  std::string_view name;  // of kv_dtype in a config
  uint8_t code = 0;       // from kFirstUserCode on; the same on S-worker and R-workers
  KeyOps keys;
  ValueOps values;
};

// Those of this build, in the order of FASTDECODE_KV_CODECS.
std::span<const UserCodec* const> UserCodecs();

// What is wrong with the user codecs (a name or a code given twice or taken, a code below
// kFirstUserCode, a tile that is not whole lines); empty: nothing.
std::string FaultOfUserCodecs(std::span<const UserCodec* const> codecs = UserCodecs());

// What a cache holds, keys and values apart.
struct KvCodes {
  uint8_t keys = 1;
  uint8_t values = 1;
  friend bool operator==(const KvCodes&, const KvCodes&) = default;
};

constexpr uint8_t CodeOf(KvFormat format) { return static_cast<uint8_t>(static_cast<int>(format) + 1); }

// 0: no format of this build has the name.
uint8_t CodeOf(std::string_view name);
// Empty: no format of this build has the code.
std::string_view NameOf(uint8_t code);
std::vector<std::string> FormatNames();
// "f16, bf16, int8, int4".
std::string FormatList();
// Of "int8", or of "int8/int4", keys and values; none: a name is not of this build.
std::optional<KvCodes> CodesOf(std::string_view names);
// "int8", or "int8 keys, int4 values".
std::string Describe(KvCodes codes);

// Both codes are of this build.
KvLayout MakeLayout(KvCodes codes, int32_t num_kv_heads, int32_t head_dim, int32_t block_tokens);
KvCodec CodecOf(const AttentionKernel& kernel, KvCodes codes);

}  // namespace fastdecode::kernels
