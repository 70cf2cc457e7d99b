#include "common/transport/in_background.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace fastdecode {
namespace {

TEST(InBackground, WithoutADescriptorItIsAnError) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  InBackground<int> making([] { return Result<int>(1); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const Result<int> made = making.Take();
  EXPECT_EQ(made.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(made.status().message(), testing::HasSubstr("no descriptor"));
}

}  // namespace
}  // namespace fastdecode
