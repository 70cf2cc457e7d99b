// Walks the lines of an Ahead while a tile is worked on.
#pragma once

#include <immintrin.h>

#include "kernels/attention_kernel.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

inline constexpr int kLine = 64;  // bytes

class Prefetcher {
 public:
  Prefetcher(const Ahead& ahead, int64_t tile_bytes) : ahead_(ahead), left_(tile_bytes / kLine) {}

  FD_INLINE inline void Line() {
    _mm_prefetch(reinterpret_cast<const char*>(ahead_.at), _MM_HINT_T1);
    ahead_.at += kLine;
    if (--ahead_.lines == 0) ahead_.at = ahead_.then;
    --left_;
  }
  // For row `row` of a loop over rows of kBytes: whole lines, so rarer than every row where kBytes is less.
  template <int kBytes>
  FD_INLINE inline void Row(int row) {
    constexpr int kRows = kBytes >= kLine ? 1 : kLine / kBytes;
    if (row % kRows != 0) return;
    for (int bytes = 0; bytes < kBytes; bytes += kLine) Line();
  }
  // What the rows did not cover.
  FD_INLINE inline void Rest() {
    while (left_ > 0) Line();
  }

 private:
  Ahead ahead_;
  int64_t left_;
};

}  // namespace
}  // namespace fastdecode::kernels
