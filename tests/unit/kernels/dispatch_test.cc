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
  for (const AttentionKernel* kernel : AttentionKernels()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_FALSE(kernel.description.empty());
    EXPECT_EQ(ChooseAttentionKernel(kernel->name, kEverything).kernel, kernel);
  }
}

TEST(Dispatch, AutoTakesTheBestThatTheCpuHas) {
  EXPECT_EQ(ChooseAttentionKernel("auto", kAvx2 | kFma | kF16c).kernel->name, "avx2");
}

TEST(Dispatch, ACpuThatLacksAnIsaGetsOneSentence) {
  for (const char* name : {"auto", "avx2"}) {
    const KernelChoice choice = ChooseAttentionKernel(name, kFma | kF16c);
    EXPECT_EQ(choice.kernel, nullptr);
    EXPECT_THAT(choice.error, HasSubstr("AVX2"));
    EXPECT_THAT(choice.error, testing::Not(HasSubstr("FMA")));
  }
  EXPECT_EQ(ChooseAttentionKernel("reference", kNoFeatures).kernel->name, "reference");
}

TEST(Dispatch, AnUnknownNameListsTheKnownOnes) {
  const KernelChoice choice = ChooseAttentionKernel("avx3", kEverything);
  EXPECT_EQ(choice.kernel, nullptr);
  EXPECT_THAT(choice.error, testing::AllOf(HasSubstr("avx3"), HasSubstr("reference"), HasSubstr("avx2")));
}

TEST(Dispatch, FeaturesAgreeWithTheCompilersOwnDetection) {
  const uint32_t features = DetectCpuFeatures();
  EXPECT_EQ((features & kAvx2) != 0, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ((features & kFma) != 0, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ((features & kAvx512f) != 0, __builtin_cpu_supports("avx512f") != 0);
}

}  // namespace
}  // namespace fastdecode::kernels
