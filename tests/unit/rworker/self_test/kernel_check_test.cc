#include "rworker/self_test/kernel_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/f16.h"

namespace fastdecode::rworker {
namespace {

TEST(KernelCheck, EveryKernelThatThisCpuRunsPasses) {
  for (const kernels::DecodeAttentionKernel& kernel : kernels::DecodeAttentionKernels()) {
    if ((kernel.features & ~kernels::DetectCpuFeatures()) != 0) continue;
    const Status status = CheckKernel(kernel);
    EXPECT_TRUE(status.ok()) << kernel.name << ": " << status.message();
  }
}

// Wrong in one element of the last head, by 2 %.
void SlightlyWrong(const kernels::DecodeAttentionParams& params) {
  kernels::DecodeAttentionKernels().front().attend(params);
  const int32_t heads = params.num_kv_heads * params.group;
  if (params.kv_head_end != params.num_kv_heads || params.out == nullptr || params.token_end != 33) return;
  uint16_t& last = params.out[heads * params.head_dim - 1];
  last = kernels::FloatToHalf(kernels::HalfToFloat(last) * 1.02f + 0.002f);
}

TEST(KernelCheck, OneThatIsSlightlyWrongFailsAndIsToldWhere) {
  kernels::DecodeAttentionKernel kernel = kernels::DecodeAttentionKernels().front();
  kernel.attend = SlightlyWrong;
  const Status status = CheckKernel(kernel);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), testing::HasSubstr("context 33"));
}

// Where ranges of a long context are joined.
TEST(KernelCheck, AMergeThatForgetsARangeFails) {
  kernels::DecodeAttentionKernel kernel = kernels::DecodeAttentionKernels().front();
  kernel.merge = [](const kernels::MergeParams& params) {
    kernels::MergeParams fewer = params;
    --fewer.num_ranges;
    kernels::DecodeAttentionKernels().front().merge(fewer);
  };
  EXPECT_THAT(CheckKernel(kernel).message(), testing::HasSubstr("context 1100"));
}

}  // namespace
}  // namespace fastdecode::rworker
