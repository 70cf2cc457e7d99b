#include "kernels/dispatch.h"

#include <cpuid.h>

namespace fastdecode::kernels {

#define FD_DECODE_ATTENTION(name, suffix, features, description) \
  void Attend##suffix(const DecodeAttentionParams& params);      \
  void Merge##suffix(const MergeParams& params);                 \
  void Exp2##suffix(const float* x, float* y, int64_t count);
#include "kernels/kernel_list.inc"
#undef FD_DECODE_ATTENTION

#define FD_READ_STREAM(name, suffix, features) uint64_t ReadStream##suffix(const ReadStreamParams& params);
#include "kernels/read_stream_list.inc"
#undef FD_READ_STREAM

namespace {

constexpr DecodeAttentionKernel kDecodeAttentionKernels[] = {
#define FD_DECODE_ATTENTION(name, suffix, features, description) \
  {name, description, features, &Attend##suffix, &Merge##suffix, &Exp2##suffix},
#include "kernels/kernel_list.inc"
#undef FD_DECODE_ATTENTION
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

}  // namespace

uint32_t DetectCpuFeatures() {
  constexpr uint32_t kOsxsave = 1u << 27;
  constexpr uint32_t kFmaBit = 1u << 12;
  constexpr uint32_t kF16cBit = 1u << 29;
  constexpr uint32_t kAvx2Bit = 1u << 5;      // leaf 7, ebx
  constexpr uint32_t kAvx512fBit = 1u << 16;  // leaf 7, ebx
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
  if ((ebx & kAvx512fBit) != 0 && (state & kZmmState) == kZmmState) features |= kAvx512f;
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
  return names.empty() ? "none" : names;
}

std::span<const DecodeAttentionKernel> DecodeAttentionKernels() { return kDecodeAttentionKernels; }
std::span<const ReadStreamKernel> ReadStreamKernels() { return kReadStreamKernels; }

KernelChoice ChooseDecodeAttention(std::string_view name_or_auto, uint32_t features) {
  const auto missing = [&](const DecodeAttentionKernel& kernel) { return kernel.features & ~features; };
  if (name_or_auto == "auto") {
    const DecodeAttentionKernel* best = nullptr;
    for (const DecodeAttentionKernel& kernel : DecodeAttentionKernels()) {
      if (kernel.features != kNoFeatures && missing(kernel) == 0) best = &kernel;
    }
    if (best != nullptr) return {best, ""};
    return {nullptr, "this CPU lacks " + FeatureNames((kAvx2 | kFma | kF16c) & ~features) +
                         ", which the attention kernels need (any x86-64 server since 2013 has them); the kernel "
                         "f16_reference runs here, very slowly, when it is named"};
  }
  std::string known;
  for (const DecodeAttentionKernel& kernel : DecodeAttentionKernels()) {
    if (kernel.name == name_or_auto) {
      if (missing(kernel) == 0) return {&kernel, ""};
      return {nullptr, "attention kernel " + std::string(kernel.name) + " needs " + FeatureNames(missing(kernel)) +
                           ", which this CPU lacks"};
    }
    known += ", " + std::string(kernel.name);
  }
  return {nullptr, "no attention kernel is called '" + std::string(name_or_auto) + "'; there are auto" + known};
}

}  // namespace fastdecode::kernels
