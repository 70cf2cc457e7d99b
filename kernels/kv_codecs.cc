#include "kernels/kv_codecs.h"

#include <cstdlib>

namespace fastdecode::kernels {
namespace {

const UserCodec* FindUser(uint8_t code) {
  for (const UserCodec* codec : UserCodecs()) {
    if (codec->code == code) return codec;
  }
  return nullptr;
}

bool IsBuiltIn(uint8_t code) { return code >= 1 && code <= kKvFormats; }
KvFormat FormatOf(uint8_t code) { return static_cast<KvFormat>(code - 1); }

// Callers have looked the code up.
const UserCodec& UserOf(uint8_t code) {
  const UserCodec* const codec = FindUser(code);
  if (codec == nullptr) std::abort();
  return *codec;
}

std::string FaultOf(const UserCodec& codec, std::span<const UserCodec* const> all) {
  const std::string name(codec.name);
  if (name.empty()) return "a user codec has no name";
  if (codec.code < kFirstUserCode) {
    return "user codec '" + name + "' has code " + std::to_string(codec.code) + "; expected " +
           std::to_string(kFirstUserCode) + " to 255";
  }
  for (const std::string_view built_in : kKvFormatNames) {
    if (name == built_in) return "user codec '" + name + "' has the name of a built-in format";
  }
  for (const UserCodec* other : all) {
    if (other == &codec) continue;
    if (other->name == codec.name) return "two user codecs have the name '" + name + "'";
    if (other->code == codec.code) return "two user codecs have the code " + std::to_string(codec.code);
  }
  for (int32_t head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
    for (const int64_t bytes : {codec.keys.tile_bytes(head_dim), codec.values.tile_bytes(head_dim)}) {
      if (bytes > 0 && bytes % 64 == 0) continue;
      return "user codec '" + name + "' has a tile of " + std::to_string(bytes) + " bytes at head_dim " +
             std::to_string(head_dim) + "; expected a multiple of 64";
    }
  }
  return "";
}

}  // namespace

std::string FaultOfUserCodecs(std::span<const UserCodec* const> codecs) {
  for (const UserCodec* codec : codecs) {
    std::string fault = FaultOf(*codec, codecs);
    if (!fault.empty()) return fault;
  }
  return "";
}

uint8_t CodeOf(std::string_view name) {
  for (int i = 0; i < kKvFormats; ++i) {
    if (kKvFormatNames[i] == name) return CodeOf(static_cast<KvFormat>(i));
  }
  for (const UserCodec* codec : UserCodecs()) {
    if (codec->name == name) return codec->code;
  }
  return 0;
}

std::string_view NameOf(uint8_t code) {
  if (IsBuiltIn(code)) return KvFormatName(FormatOf(code));
  const UserCodec* const codec = FindUser(code);
  return codec == nullptr ? std::string_view() : codec->name;
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names(std::begin(kKvFormatNames), std::end(kKvFormatNames));
  for (const UserCodec* codec : UserCodecs()) names.emplace_back(codec->name);
  return names;
}

std::string FormatList() {
  std::string list;
  for (const std::string& name : FormatNames()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::optional<KvCodes> CodesOf(std::string_view names) {
  const size_t slash = names.find('/');
  const KvCodes codes{CodeOf(names.substr(0, slash)), CodeOf(slash == names.npos ? names : names.substr(slash + 1))};
  if (codes.keys == 0 || codes.values == 0) return std::nullopt;
  return codes;
}

std::string Describe(KvCodes codes) {
  const std::string keys(NameOf(codes.keys));
  if (codes.keys == codes.values) return keys;
  return keys + " keys, " + std::string(NameOf(codes.values)) + " values";
}

KvLayout MakeLayout(KvCodes codes, int32_t num_kv_heads, int32_t head_dim, int32_t block_tokens) {
  const int64_t keys = IsBuiltIn(codes.keys) ? KeyTileBytes(FormatOf(codes.keys), head_dim)
                                             : UserOf(codes.keys).keys.tile_bytes(head_dim);
  const int64_t values = IsBuiltIn(codes.values) ? ValueTileBytes(FormatOf(codes.values), head_dim)
                                                 : UserOf(codes.values).values.tile_bytes(head_dim);
  return {num_kv_heads, head_dim, block_tokens, keys, values};
}

KvCodec CodecOf(const AttentionKernel& kernel, KvCodes codes) {
  return {NameOf(codes.keys), NameOf(codes.values),
          IsBuiltIn(codes.keys) ? kernel.keys[codes.keys - 1] : UserOf(codes.keys).keys,
          IsBuiltIn(codes.values) ? kernel.values[codes.values - 1] : UserOf(codes.values).values};
}

}  // namespace fastdecode::kernels
