// Walks the lines of an Ahead while a tile is worked on.
//
// Near lines are asked for in the order in which they are read. Far ones are not: while a window of kWindow bytes is
// read, the one after it is asked for in kStreams places in turns, a page apart. The memory system
// reads several streams faster than one, since its own prefetchers follow each within its page, and
// banks and channels are busy side by side (docs/performance.md).
#pragma once

#include <immintrin.h>

#include "kernels/attention_kernel.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

inline constexpr int kLine = 64;  // bytes
inline constexpr uint64_t kStreams = 4;
inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kWindow = kStreams * kPage;
inline constexpr int64_t kLead =
    6144;  // bytes by which a window is asked for earlier still: no line is less than this ahead

class Prefetcher {
 public:
  // The tile's payload will be walked over `walks` times.
  Prefetcher(const Ahead& ahead, int64_t tile_bytes, int walks)
      : ahead_(ahead), left_(tile_bytes / kLine), bytes_a_line_(kLine * walks) {}

  FD_INLINE inline void Line() {
    _mm_prefetch(reinterpret_cast<const char*>(Next(ahead_.near)), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(Next(ahead_.far)), _MM_HINT_T1);
    --left_;
  }
  // As many lines, or what is left of the tile.
  FD_INLINE inline void Lines(int count) {
    for (; count > 0 && left_ > 0; --count) Line();
  }
  // The next `bytes` of a walk are about to be worked on: asks for as much of what comes later, spread
  // evenly over all walks, so that the memory is never idle. A walk that is the only one (kOnce) does
  // so line by line instead, which is smoother, but costs a loop with little work its registers.
  template <bool kOnce>
  FD_INLINE inline void Working(int bytes) {
    if constexpr (kOnce) return;
    for (due_ += bytes; due_ >= bytes_a_line_; due_ -= bytes_a_line_) Line();
  }
  // Row `row` of kBytes in a walk.
  template <bool kOnce, int kBytes, int row>
  FD_INLINE inline void Row() {
    constexpr int kRows = kBytes >= kLine ? 1 : kLine / kBytes;
    if constexpr (kOnce && row % kRows == 0) {
      for (int bytes = 0; bytes < kBytes; bytes += kLine) Line();
    }
  }
  // What the walks did not cover.
  FD_INLINE inline void Rest() {
    while (left_ > 0) Line();
  }

 private:
  static FD_INLINE inline const std::byte* Next(Ahead::Lines& lines) {
    const std::byte* const line = lines.at;
    lines.at += kLine;
    if (--lines.count == 0) lines.at = lines.then;
    return line;
  }
  static FD_INLINE inline const std::byte* Next(Ahead::Run& run) {
    const auto at = static_cast<uint64_t>(run.at + kLead);
    const uint64_t line = at % kWindow / kLine;
    const auto place =
        static_cast<int64_t>(at - at % kWindow + kWindow + line % kStreams * kPage + line / kStreams * kLine);
    run.at += kLine;
    return (place < run.bytes ? run.begin : run.next - run.bytes) + place;
  }

  Ahead ahead_;
  int64_t left_;
  const int bytes_a_line_;
  int due_ = 0;
};

}  // namespace
}  // namespace fastdecode::kernels
