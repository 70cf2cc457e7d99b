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
    EXPECT_TRUE(names.insert(kernel->name).second) << kernel->name;
    EXPECT_FALSE(kernel->description.empty());
    EXPECT_EQ(ChooseAttentionKernel(kernel->name, kEverything).kernel, kernel);
  }
}

TEST(Dispatch, AutoTakesTheBestThatTheCpuHas) {
  constexpr uint32_t kWithAvx2 = kAvx2 | kFma | kF16c;
  constexpr uint32_t kWithAvx512 = kWithAvx2 | kAvx512f | kAvx512vl | kAvx512dq | kAvx512bw | kAvx512vnni;
  EXPECT_EQ(ChooseAttentionKernel("auto", kWithAvx2).kernel->name, "avx2");
  EXPECT_EQ(ChooseAttentionKernel("auto", kWithAvx2 | kAvx512f).kernel->name, "avx2");
  EXPECT_EQ(ChooseAttentionKernel("auto", kWithAvx512).kernel->name, "avx512");
  EXPECT_EQ(ChooseAttentionKernel("auto", kWithAvx512 | kAvx512bf16).kernel->name, "avx512");
  EXPECT_EQ(ChooseAttentionKernel("auto", kEverything).kernel->name, "amx");
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

TEST(Dispatch, ACodecIsTheKernelsOwnOperationsByFormat) {
  for (const AttentionKernel* kernel : AttentionKernels()) {
    const KvCodec codec = CodecOf(*kernel, KvFormat::kInt8, KvFormat::kInt4);
    EXPECT_EQ(codec.key_name, "int8");
    EXPECT_EQ(codec.value_name, "int4");
    EXPECT_EQ(codec.keys.scores, kernel->keys[static_cast<int>(KvFormat::kInt8)].scores);
    EXPECT_EQ(codec.values.add, kernel->values[static_cast<int>(KvFormat::kInt4)].add);
  }
}

TEST(Dispatch, FeaturesAgreeWithTheCompilersOwnDetection) {
  const uint32_t features = DetectCpuFeatures();
  EXPECT_EQ((features & kAvx2) != 0, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ((features & kFma) != 0, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ((features & kAvx512f) != 0, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ((features & kAvx512vl) != 0, __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ((features & kAvx512dq) != 0, __builtin_cpu_supports("avx512dq") != 0);
  EXPECT_EQ((features & kAvx512bw) != 0, __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ((features & kAvx512vnni) != 0, __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ((features & kAvx512bf16) != 0, __builtin_cpu_supports("avx512bf16") != 0);
}

}  // namespace
}  // namespace fastdecode::kernels
