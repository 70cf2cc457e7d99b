#include "kernels/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace fastdecode::kernels {
namespace {

using testing::HasSubstr;

constexpr uint32_t kEverything = ~uint32_t{0};

TEST(Dispatch, EveryKernelIsListedOnceAndFoundByName) {
  std::set<std::string_view> names;
  for (const DecodeAttentionKernel& kernel : DecodeAttentionKernels()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_FALSE(kernel.description.empty());
    EXPECT_EQ(ChooseDecodeAttention(kernel.name, kEverything).kernel, &kernel);
  }
}

TEST(Dispatch, AutoTakesTheBestThatTheCpuHas) {
  EXPECT_EQ(ChooseDecodeAttention("auto", kAvx2 | kFma | kF16c).kernel->name, "f16_avx2");
}

TEST(Dispatch, ACpuThatLacksAnIsaGetsOneSentence) {
  for (const char* name : {"auto", "f16_avx2"}) {
    const KernelChoice choice = ChooseDecodeAttention(name, kFma | kF16c);
    EXPECT_EQ(choice.kernel, nullptr);
    EXPECT_THAT(choice.error, HasSubstr("AVX2"));
    EXPECT_THAT(choice.error, testing::Not(HasSubstr("FMA")));
  }
  EXPECT_EQ(ChooseDecodeAttention("f16_reference", kNoFeatures).kernel->name, "f16_reference");
}

TEST(Dispatch, AnUnknownNameListsTheKnownOnes) {
  const KernelChoice choice = ChooseDecodeAttention("f16_avx3", kEverything);
  EXPECT_EQ(choice.kernel, nullptr);
  EXPECT_THAT(choice.error, testing::AllOf(HasSubstr("f16_avx3"), HasSubstr("f16_reference"), HasSubstr("f16_avx2")));
}

TEST(Dispatch, FeaturesAgreeWithTheCompilersOwnDetection) {
  const uint32_t features = DetectCpuFeatures();
  EXPECT_EQ((features & kAvx2) != 0, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ((features & kFma) != 0, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ((features & kAvx512f) != 0, __builtin_cpu_supports("avx512f") != 0);
}

}  // namespace
}  // namespace fastdecode::kernels
