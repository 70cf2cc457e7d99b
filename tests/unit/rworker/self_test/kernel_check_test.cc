#include "rworker/self_test/kernel_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/f16.h"

namespace fastdecode::rworker {
namespace {

TEST(KernelCheck, EveryKernelThatThisCpuRunsPasses) {
  for (const kernels::AttentionKernel* kernel : kernels::AttentionKernels()) {
    if ((kernel->features & ~kernels::DetectCpuFeatures()) != 0) continue;
    const Status status = CheckKernel(*kernel);
    EXPECT_TRUE(status.ok()) << kernel->name << ": " << status.message();
  }
}

const kernels::AttentionKernel& Reference() { return *kernels::AttentionKernels().front(); }
constexpr auto kF16 = static_cast<size_t>(kernels::KvFormat::kF16);

// Wrong by 2 % in one element of a tile that holds one token.
void SlightlyWrong(const kernels::ValueArgs& args) {
  Reference().values[kF16].add(args);
  if (args.tokens == 1 && args.head_dim == 80) args.acc[args.head_dim - 1] *= 1.02f;
}

TEST(KernelCheck, OneThatIsSlightlyWrongFailsAndIsToldWhere) {
  kernels::AttentionKernel kernel = Reference();
  kernel.values[kF16].add = SlightlyWrong;
  const Status status = CheckKernel(kernel);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), testing::HasSubstr("head_dim 80, context 1)"));
}

// Where ranges of a long context are joined.
TEST(KernelCheck, AMergeThatForgetsARangeFails) {
  kernels::AttentionKernel kernel = Reference();
  kernel.add_scaled = [](float*, const float*, float, int32_t) {};
  EXPECT_THAT(CheckKernel(kernel).message(), testing::HasSubstr("context 1100"));
}

}  // namespace
}  // namespace fastdecode::rworker
