#include "bench/kernel_tiles/fma_rate.h"

#include <algorithm>
#include <chrono>

namespace fastdecode::bench {
namespace {

constexpr int kRuns = 50;
constexpr int kSteps = 20000;
constexpr int kFmasOfStep = 12;  // none waits for another of its step: four cycles on two ports take eight

#define FD_FMA(reg, n) "vfmadd231ps %%" reg "14, %%" reg "15, %%" reg #n "\n\t"
#define FD_FMAS(reg) \
  FD_FMA(reg, 0)     \
  FD_FMA(reg, 1)     \
  FD_FMA(reg, 2)     \
  FD_FMA(reg, 3)     \
  FD_FMA(reg, 4)     \
  FD_FMA(reg, 5)     \
  FD_FMA(reg, 6)     \
  FD_FMA(reg, 7)     \
  FD_FMA(reg, 8)     \
  FD_FMA(reg, 9)     \
  FD_FMA(reg, 10)    \
  FD_FMA(reg, 11)

#define FD_CLOBBERED \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15"

// Of zeros: what a register happens to hold may be a number that is too small to be multiplied at full speed.
void Fmas8() {
  __asm__ volatile("vzeroall" ::: FD_CLOBBERED);
  for (int step = 0; step < kSteps; ++step) __asm__ volatile(FD_FMAS("ymm")::: FD_CLOBBERED);
  __asm__ volatile("vzeroupper" ::: FD_CLOBBERED);
}

void Fmas16() {
  __asm__ volatile("vzeroall" ::: FD_CLOBBERED);
  for (int step = 0; step < kSteps; ++step) __asm__ volatile(FD_FMAS("zmm")::: FD_CLOBBERED);
  __asm__ volatile("vzeroupper" ::: FD_CLOBBERED);
}

}  // namespace

double FmaRate(int lanes) {
  double best_s = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    lanes == 16 ? Fmas16() : Fmas8();
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return double{kSteps} * kFmasOfStep / best_s;
}

}  // namespace fastdecode::bench
