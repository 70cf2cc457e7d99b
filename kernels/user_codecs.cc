// The user codecs of a build. kv_codec_list.inc is written by CMake (cmake/KvCodecs.cmake).
#include "kernels/kv_codecs.h"

namespace fastdecode::kernels {

#define FD_KV_CODEC(codec) extern const UserCodec codec;
#include "kv_codec_list.inc"
#undef FD_KV_CODEC

namespace {

constexpr const UserCodec* kUserCodecs[] = {
#define FD_KV_CODEC(codec) &codec,
#include "kv_codec_list.inc"
#undef FD_KV_CODEC
    nullptr  // so that there is one where there are none
};

}  // namespace

std::span<const UserCodec* const> UserCodecs() { return {kUserCodecs, std::size(kUserCodecs) - 1}; }

}  // namespace fastdecode::kernels
