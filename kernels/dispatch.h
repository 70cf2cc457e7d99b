// Which kernels this build has and which this CPU can run.
//
// The list is kernel_list.inc; a kernel is chosen once at start, by cpuid or by
// name, logged by the caller with its description, and passed on by pointer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/attention_kernel.h"
#include "kernels/read_stream.h"

namespace fastdecode::kernels {

enum CpuFeature : uint32_t {
  kNoFeatures = 0,
  kAvx2 = 1u << 0,
  kFma = 1u << 1,
  kF16c = 1u << 2,
  kAvx512f = 1u << 3,
  kAvx512vl = 1u << 4,
  kAvx512dq = 1u << 5,
  kAvx512bw = 1u << 6,
  kAvx512vnni = 1u << 7,
  kAvx512bf16 = 1u << 8,
  kAmxBf16 = 1u << 9,  // and the system lets this process use the tiles
};

// What CPU and operating system offer together (cpuid and the enabled register state). Asks the
// system to let this process use AMX's tiles.
uint32_t DetectCpuFeatures();
// "AVX2, FMA, F16C" for the log and for errors.
std::string FeatureNames(uint32_t features);

struct ReadStreamKernel {
  std::string_view name;
  uint32_t features;
  uint64_t (*read)(const ReadStreamParams& params);  // returns a value that depends on all bytes
};

// Best last.
std::span<const AttentionKernel* const> AttentionKernels();
std::span<const ReadStreamKernel> ReadStreamKernels();

// The kernel's codec of a pair of built-in formats.
KvCodec CodecOf(const AttentionKernel& kernel, KvFormat keys, KvFormat values);

struct KernelChoice {
  const AttentionKernel* kernel = nullptr;  // null: `error` says why
  std::string error;
};

// The best kernel for `features`, or the one named. "auto" never falls back to the
// reference kernel, which would be a hundred times slower without a word: a CPU that
// lacks AVX2, FMA or F16C gets an error that says so, and may name the reference.
KernelChoice ChooseAttentionKernel(std::string_view name_or_auto, uint32_t features);

}  // namespace fastdecode::kernels
