// Which kernels this build has and which this CPU can run.
//
// The list is kernel_list.inc; a kernel is chosen once at start, by cpuid or by
// name, logged by the caller with its description, and passed on by pointer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/decode_attention.h"
#include "kernels/read_stream.h"

namespace fastdecode::kernels {

enum CpuFeature : uint32_t {
  kNoFeatures = 0,
  kAvx2 = 1u << 0,
  kFma = 1u << 1,
  kF16c = 1u << 2,
  kAvx512f = 1u << 3,
};

// What CPU and operating system offer together (cpuid and the enabled register state).
uint32_t DetectCpuFeatures();
// "AVX2, FMA, F16C" for the log and for errors.
std::string FeatureNames(uint32_t features);

struct DecodeAttentionKernel {
  std::string_view name;
  std::string_view description;
  uint32_t features;  // CpuFeature bits that it needs
  void (*attend)(const DecodeAttentionParams& params);
  void (*merge)(const MergeParams& params);
  void (*exp2)(const float* x, float* y, int64_t count);  // 2^x as the kernel computes it, x <= 0; for its test
};

struct ReadStreamKernel {
  std::string_view name;
  uint32_t features;
  uint64_t (*read)(const ReadStreamParams& params);  // returns a value that depends on all bytes
};

std::span<const DecodeAttentionKernel> DecodeAttentionKernels();
std::span<const ReadStreamKernel> ReadStreamKernels();

struct KernelChoice {
  const DecodeAttentionKernel* kernel = nullptr;  // null: `error` says why
  std::string error;
};

// The best kernel for `features`, or the one named. "auto" never falls back to the
// reference kernel, which would be a hundred times slower without a word: a CPU that
// lacks AVX2, FMA or F16C gets an error that says so, and may name f16_reference.
KernelChoice ChooseDecodeAttention(std::string_view name_or_auto, uint32_t features);

}  // namespace fastdecode::kernels
