#include <immintrin.h>

#include "kernels/read_stream.h"

namespace fastdecode::kernels {
namespace {

template <int kStreams, bool kPrefetch>
uint64_t Read(const ReadStreamParams& p) {
  const int64_t part = p.bytes / kStreams;
  const char* const data = static_cast<const char*>(p.data);
  __m512i sum[4] = {};
  for (int64_t i = 0; i < part; i += 256) {
    for (int s = 0; s < kStreams; ++s) {
      const char* const at = data + s * part + i;
      for (int line = 0; line < 4; ++line) {
        if (kPrefetch) _mm_prefetch(at + p.prefetch_bytes + line * 64, _MM_HINT_T0);
        sum[line] = _mm512_xor_si512(sum[line], _mm512_load_si512(at + line * 64));
      }
    }
  }
  const __m512i all = _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]));
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, all);
  uint64_t result = 0;
  for (uint64_t word : words) result ^= word;
  return result;
}

template <bool kPrefetch>
uint64_t ReadStreams(const ReadStreamParams& p) {
  switch (p.streams) {
    case 2:
      return Read<2, kPrefetch>(p);
    case 4:
      return Read<4, kPrefetch>(p);
    case 8:
      return Read<8, kPrefetch>(p);
    default:
      return Read<1, kPrefetch>(p);
  }
}

}  // namespace

uint64_t ReadStreamAvx512(const ReadStreamParams& p) {
  return p.prefetch_bytes > 0 ? ReadStreams<true>(p) : ReadStreams<false>(p);
}

}  // namespace fastdecode::kernels
