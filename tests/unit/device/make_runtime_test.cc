#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sworker/device/device_runtime.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

TEST(MakeDeviceRuntime, Cpu) {
  auto runtime = MakeDeviceRuntime("cpu", 1);
  ASSERT_TRUE(runtime.ok()) << runtime.status().ToString();
  EXPECT_TRUE((*runtime)->device().is_cpu());
  EXPECT_THAT((*runtime)->description(), HasSubstr("cpu, 1 thread"));
}

TEST(MakeDeviceRuntime, RefusesWhatIsNoDevice) {
  for (const char* name : {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "cpu:0"}) {
    const auto runtime = MakeDeviceRuntime(name, 1);
    ASSERT_FALSE(runtime.ok()) << name;
    EXPECT_EQ(runtime.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(runtime.status().message(), HasSubstr("expected \"cpu\" or \"cuda:N\""));
  }
  EXPECT_EQ(MakeDeviceRuntime("cpu", 0).status().code(), StatusCode::kInvalidArgument);
}

// Whatever this host and this build lack, the answer is one line that says so.
TEST(MakeDeviceRuntime, AGpuThatIsNotThereIsOneClearError) {
  const auto runtime = MakeDeviceRuntime("cuda:63", 1);
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(runtime.status().message(), HasSubstr("cuda:63: "));
  EXPECT_THAT(runtime.status().message(),
              testing::AnyOf(HasSubstr("no CUDA plugin in this build"), HasSubstr("no NVIDIA driver"),
                             HasSubstr("no NVIDIA GPU"), HasSubstr("GPUs, numbered from 0")));
  EXPECT_THAT(runtime.status().message(), testing::Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace fastdecode
