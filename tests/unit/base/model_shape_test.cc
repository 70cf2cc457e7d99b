#include "common/base/model_shape.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

TEST(ModelShape, TextAndBack) {
  const AttentionShape shape{80, 64, 8, 128};
  EXPECT_EQ(FormatShape(shape), "80x64x8x128");
  EXPECT_EQ(ParseShape("80x64x8x128").value(), shape);
}

TEST(ModelShape, WhatIsNoShape) {
  for (const char* text : {"", "x", "80x64x8", "80x64x8x", "80x64x8x128x", "80x64x8x128 ", " 80x64x8x128",
                           "80,64,8,128", "0x64x8x128", "-1x64x8x128", "80x64x7x128", "80x64x65x128", "80x64x8x12",
                           "80x64x8x264", "1025x64x8x128", "80x2048x8x128", "99999999999x64x8x128", "0x1p3x1x8"}) {
    EXPECT_EQ(ParseShape(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace fastdecode
