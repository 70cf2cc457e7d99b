#include "kernels/kernel_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/dispatch.h"

namespace fastdecode::kernels {
namespace {

using testing::HasSubstr;

const AttentionKernel& Reference() { return *AttentionKernels().front(); }
constexpr auto kInt8 = static_cast<size_t>(KvFormat::kInt8);

TEST(KernelCheck, EveryKernelThatThisCpuRunsPasses) {
  for (const AttentionKernel* kernel : AttentionKernels()) {
    if ((kernel->features & ~DetectCpuFeatures()) != 0) continue;
    EXPECT_EQ(FaultOfKernel(*kernel), "");
  }
}

// Wrong by 2 % in one element of a tile that holds one token, in one format.
TEST(KernelCheck, OneThatIsSlightlyWrongFailsAndIsToldWhere) {
  AttentionKernel kernel = Reference();
  kernel.values[kInt8].add = [](const ValueArgs& args) {
    Reference().values[kInt8].add(args);
    if (args.tokens == 1 && args.head_dim == 80) args.acc[args.head_dim - 1] *= 1.02f;
  };
  EXPECT_THAT(FaultOfKernel(kernel), HasSubstr("int8, 2 KV heads, 1 query heads each, head_dim 80, context 1)"));
}

TEST(KernelCheck, AMergeThatForgetsARangeFails) {
  AttentionKernel kernel = Reference();
  kernel.add_scaled = [](float*, const float*, float, int32_t) {};
  EXPECT_THAT(FaultOfKernel(kernel), HasSubstr("context 150"));
}

TEST(KernelCheck, AScaleThatIsStoredWrongFails) {
  AttentionKernel kernel = Reference();
  kernel.keys[kInt8].store = [](const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
    const int beyond = Reference().keys[kInt8].store(row, head_dim, token, tile);
    if (token == 7) tile[head_dim * kTileTokens + 15] ^= std::byte{1};  // doubles or halves
    return beyond;
  };
  EXPECT_THAT(FaultOfKernel(kernel), HasSubstr("int8"));
}

}  // namespace
}  // namespace fastdecode::kernels
