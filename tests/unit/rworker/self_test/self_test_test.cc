#include "rworker/self_test/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rworker/self_test/barrier.h"

namespace fastdecode::rworker {
namespace {

TEST(SelfTestShapes, AreHeadsKvHeadsAndHeadDim) {
  const auto shapes = ParseShapes("32x32x128,14x2x64");
  ASSERT_TRUE(shapes.ok());
  EXPECT_THAT(*shapes, testing::ElementsAre(AttentionShape{1, 32, 32, 128}, AttentionShape{1, 14, 2, 64}));
  EXPECT_TRUE(ParseShapes("")->empty());
  for (const char* text :
       {"32", "32x32", "32x32x128x1", "32x32x", "x32x128", "32x0x128", "32x5x128", "8x16x64", "32x32x12", "32x32x512",
        "-32x32x128", "32x32x128;32x32x128", "32 x32x128", "a,b", "99999999999x1x8", ",32x32x128"}) {
    EXPECT_EQ(ParseShapes(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(Barrier, IsMeasured) {
  for (const int threads : {1, 3}) {
    ComputePool pool(threads, /*pin=*/false);
    EXPECT_GT(MeasureBarrierUs(&pool), 0);
  }
}

}  // namespace
}  // namespace fastdecode::rworker
