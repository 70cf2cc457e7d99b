#include "kernels/dispatch.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fastdecode::kernels {

#define FD_ATTENTION_KERNEL(kernel) extern const AttentionKernel kernel;
#include "kernels/kernel_list.inc"
#undef FD_ATTENTION_KERNEL

#define FD_READ_STREAM(name, suffix, features) uint64_t ReadStream##suffix(const ReadStreamParams& params);
#include "kernels/read_stream_list.inc"
#undef FD_READ_STREAM

namespace {

constexpr const AttentionKernel* kAttentionKernels[] = {
#define FD_ATTENTION_KERNEL(kernel) &kernel,
#include "kernels/kernel_list.inc"
#undef FD_ATTENTION_KERNEL
};

constexpr ReadStreamKernel kReadStreamKernels[] = {
#define FD_READ_STREAM(name, suffix, features) {name, features, &ReadStream##suffix},
#include "kernels/read_stream_list.inc"
#undef FD_READ_STREAM
};

// The register state that the operating system saves: XCR0.
uint64_t EnabledState() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux gives a process the 8 KiB of tiles only when it asks (arch_prctl(2)).
bool MayUseTiles() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr unsigned long kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

}  // namespace

uint32_t DetectCpuFeatures() {
  constexpr uint32_t kOsxsave = 1u << 27;
  constexpr uint32_t kFmaBit = 1u << 12;
  constexpr uint32_t kF16cBit = 1u << 29;
  constexpr uint32_t kAvx2Bit = 1u << 5;      // leaf 7, ebx
  constexpr uint32_t kAvx512fBit = 1u << 16;  // leaf 7, ebx
  constexpr uint32_t kAvx512dqBit = 1u << 17;
  constexpr uint32_t kAvx512bwBit = 1u << 30;
  constexpr uint32_t kAvx512vlBit = 1u << 31;
  constexpr uint32_t kAvx512vnniBit = 1u << 11;  // leaf 7, ecx
  constexpr uint32_t kAmxBf16Bit = 1u << 22;     // leaf 7, edx
  constexpr uint32_t kAmxTileBit = 1u << 24;     // leaf 7, edx
  constexpr uint32_t kAvx512bf16Bit = 1u << 5;   // leaf 7.1, eax
  constexpr uint64_t kTileState = 0x60000;
  constexpr uint64_t kYmmState = 0x6;
  constexpr uint64_t kZmmState = 0xe6;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsxsave) == 0) return kNoFeatures;
  const uint64_t state = EnabledState();
  if ((state & kYmmState) != kYmmState) return kNoFeatures;
  uint32_t features = kNoFeatures;
  if ((ecx & kFmaBit) != 0) features |= kFma;
  if ((ecx & kF16cBit) != 0) features |= kF16c;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return features;
  if ((ebx & kAvx2Bit) != 0) features |= kAvx2;
  if ((state & kZmmState) != kZmmState) return features;
  if ((ebx & kAvx512fBit) != 0) features |= kAvx512f;
  if ((ebx & kAvx512dqBit) != 0) features |= kAvx512dq;
  if ((ebx & kAvx512bwBit) != 0) features |= kAvx512bw;
  if ((ebx & kAvx512vlBit) != 0) features |= kAvx512vl;
  if ((ecx & kAvx512vnniBit) != 0) features |= kAvx512vnni;
  const bool amx = (edx & kAmxTileBit) != 0 && (edx & kAmxBf16Bit) != 0;
  if (amx && (state & kTileState) == kTileState && MayUseTiles()) features |= kAmxBf16;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvx512bf16Bit) != 0) features |= kAvx512bf16;
  return features;
}

std::string FeatureNames(uint32_t features) {
  std::string names;
  const auto add = [&](uint32_t bit, const char* name) {
    if ((features & bit) == 0) return;
    if (!names.empty()) names += ", ";
    names += name;
  };
  add(kAvx2, "AVX2");
  add(kFma, "FMA");
  add(kF16c, "F16C");
  add(kAvx512f, "AVX-512F");
  add(kAvx512vl, "AVX-512VL");
  add(kAvx512dq, "AVX-512DQ");
  add(kAvx512bw, "AVX-512BW");
  add(kAvx512vnni, "AVX-512-VNNI");
  add(kAvx512bf16, "AVX-512-BF16");
  add(kAmxBf16, "AMX-BF16");
  return names.empty() ? "none" : names;
}

std::span<const AttentionKernel* const> AttentionKernels() { return kAttentionKernels; }
std::span<const ReadStreamKernel> ReadStreamKernels() { return kReadStreamKernels; }

KvCodec CodecOf(const AttentionKernel& kernel, KvFormat keys, KvFormat values) {
  return {KvFormatName(keys), KvFormatName(values), kernel.keys[static_cast<int>(keys)],
          kernel.values[static_cast<int>(values)]};
}

KernelChoice ChooseAttentionKernel(std::string_view name_or_auto, uint32_t features) {
  const auto missing = [&](const AttentionKernel& kernel) { return kernel.features & ~features; };
  if (name_or_auto == "auto") {
    const AttentionKernel* best = nullptr;
    for (const AttentionKernel* kernel : AttentionKernels()) {
      if (kernel->features != kNoFeatures && missing(*kernel) == 0) best = kernel;
    }
    if (best != nullptr) return {best, ""};
    return {nullptr, "this CPU lacks " + FeatureNames((kAvx2 | kFma | kF16c) & ~features) +
                         ", which the attention kernels need (any x86-64 server since 2013 has them); the kernel "
                         "'reference' runs here, very slowly, when it is named"};
  }
  std::string known;
  for (const AttentionKernel* kernel : AttentionKernels()) {
    if (kernel->name == name_or_auto) {
      if (missing(*kernel) == 0) return {kernel, ""};
      return {nullptr, "attention kernel " + std::string(kernel->name) + " needs " + FeatureNames(missing(*kernel)) +
                           ", which this CPU lacks"};
    }
    known += ", " + std::string(kernel->name);
  }
  return {nullptr, "no attention kernel is called '" + std::string(name_or_auto) + "'; there are auto" + known};
}

}  // namespace fastdecode::kernels
