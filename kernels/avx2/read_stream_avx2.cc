#include <immintrin.h>

#include "kernels/read_stream.h"

namespace fastdecode::kernels {
namespace {

template <int kStreams, bool kPrefetch>
uint64_t Read(const ReadStreamParams& p) {
  const int64_t part = p.bytes / kStreams;
  const char* const data = static_cast<const char*>(p.data);
  __m256i sum[4] = {};
  for (int64_t i = 0; i < part; i += 256) {
    for (int s = 0; s < kStreams; ++s) {
      const char* const at = data + s * part + i;
      for (int line = 0; line < 4; ++line) {
        if (kPrefetch) _mm_prefetch(at + p.prefetch_bytes + line * 64, _MM_HINT_T0);
        const __m256i* const words = reinterpret_cast<const __m256i*>(at + line * 64);
        sum[line] =
            _mm256_xor_si256(sum[line], _mm256_xor_si256(_mm256_load_si256(words), _mm256_load_si256(words + 1)));
      }
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 1) ^
                               _mm256_extract_epi64(all, 2) ^ _mm256_extract_epi64(all, 3));
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

uint64_t ReadStreamAvx2(const ReadStreamParams& p) {
  return p.prefetch_bytes > 0 ? ReadStreams<true>(p) : ReadStreams<false>(p);
}

}  // namespace fastdecode::kernels
