// Asks for what is read next while a tile is worked on.
//
// Not in the order in which it is read: while a window of kWindow bytes is
// read, the one after it is asked for in kStreams places in turns, a page apart. The memory system
// reads several streams faster than one, since its own prefetchers follow each within its page, and
// banks and channels are busy side by side (docs/performance.md). All of it goes into the first-level cache; where
// that is too small for two windows, the second has it.
//
// It goes by quads of kStreams lines, so that an instruction asks for a line with an address that is already in a
// register: with few query heads the kernels have some ten instructions a line of their own, and
// reckoning each address from its place cost twice that.
#pragma once

#include <immintrin.h>

#include "kernels/attention_kernel.h"
#include "kernels/simd/unroll.h"

namespace fastdecode::kernels {
namespace {

inline constexpr int kLine = 64;    // bytes
inline constexpr int kStreams = 4;  // lines of a quad
inline constexpr int kPage = 4096;
inline constexpr int kQuad = kStreams * kLine;
inline constexpr int kWindow = kStreams * kPage;
inline constexpr int kLead = 2048;  // bytes by which a window is asked for earlier still

class Prefetcher {
 public:
  // The tile's payload will be walked over `walks` times.
  Prefetcher(const Ahead& ahead, int64_t tile_bytes, int walks)
      : run_(ahead),
        left_(static_cast<int>((tile_bytes + kQuad - 1) / kQuad)),
        page_(PageOf(ahead)),
        bytes_a_quad_(kQuad * walks) {
    const int64_t at = run_.at + LeadOf(ahead);
    OpenWindow(at - at % window_bytes(), static_cast<int>(at % window_bytes()) / kQuad);
  }

  // Before the first tile of the first run: nobody has asked for its first lines.
  static void Begin(Ahead run) {
    const int bytes = kStreams * PageOf(run) + LeadOf(run);
    run.at = -bytes;
    Prefetcher(run, bytes, 1).Rest();
  }

  // Line `i` of a quad; the last one leads to the next quad.
  FD_INLINE inline void Line(int i) {
    _mm_prefetch(reinterpret_cast<const char*>(pages_[i] + in_page_), _MM_HINT_T0);
    if (i + 1 < kStreams) return;
    in_page_ += kLine;
    if (--left_ == left_after_) OpenWindow(window_ + window_bytes(), 0);
  }
  FD_INLINE inline void Quad() {
    Unroll<kStreams>([&]<int i>() FD_INLINE { Line(i); });
  }
  // As many bytes' lines, or what is left of the tile.
  FD_INLINE inline void Bytes(int bytes) {
    for (; bytes > 0 && left_ > 0; bytes -= kQuad) Quad();
  }
  // The next kBytes of a walk are about to be worked on, in rows of kRowBytes: asks for as much of what comes later,
  // spread evenly over all walks, so that the memory is never idle. A walk that is the only one (kOnce)
  // does so line by line instead, in Row, which is smoother, but costs a loop with little work its registers.
  template <bool kOnce, int kBytes>
  FD_INLINE inline void Working() {
    if constexpr (kOnce && kBytes % kQuad == 0) return;
    for (due_ += kBytes; due_ >= bytes_a_quad_; due_ -= bytes_a_quad_) Quad();
  }
  // Row `row` of kRowBytes of these.
  template <bool kOnce, int kBytes, int kRowBytes, int row>
  FD_INLINE inline void Row() {
    constexpr int kRows = kRowBytes >= kLine ? 1 : kLine / kRowBytes;  // that share a line
    if constexpr (kOnce && kBytes % kQuad == 0 && row % kRows == 0) {
      constexpr int kLines = kRowBytes >= kLine ? kRowBytes / kLine : 1;
      Unroll<kLines>([&]<int i>() FD_INLINE { Line((row / kRows * kLines + i) % kStreams); });
    }
  }
  // What the walks did not cover.
  FD_INLINE inline void Rest() {
    while (left_ > 0) Quad();
  }

 private:
  // A run that is shorter than a window is one, of shorter pages: the window after it is then the run after it.
  static int PageOf(const Ahead& run) {
    if (run.bytes >= kWindow) return kPage;
    return run.bytes >= kQuad ? static_cast<int>(run.bytes) / kQuad * kLine : kLine;
  }
  static int LeadOf(const Ahead& run) { return run.bytes >= kWindow ? kLead : 0; }
  int window_bytes() const { return kStreams * page_; }

  // The window that is read from place `window` of the run on, of which some quads are behind: pages of the one after
  // it.
  __attribute__((noinline)) void OpenWindow(int64_t window, int quads_behind) {
    window_ = window;
    for (int i = 0; i < kStreams; ++i) {
      const int64_t place = window + window_bytes() + i * page_;
      // After the last run, what is being read now: that costs no bandwidth.
      const std::byte* const after =
          run_.next != nullptr ? run_.next + (place - run_.bytes) : run_.begin + (place - window_bytes());
      pages_[i] = place < run_.bytes ? run_.begin + place : after;
    }
    in_page_ = quads_behind * kLine;
    left_after_ = left_ - (window_bytes() / kQuad - quads_behind);
  }

  const Ahead run_;
  const std::byte* pages_[kStreams];
  int64_t in_page_ = 0;  // the next line in each
  int64_t window_ = 0;   // bytes from the run's beginning
  int left_;             // quads of the tile
  int left_after_ = 0;   // of them once the window is asked for
  const int page_;       // bytes
  const int bytes_a_quad_;
  int due_ = 0;
};

}  // namespace
}  // namespace fastdecode::kernels
