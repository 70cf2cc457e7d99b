#include "kernels/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace fastdecode::kernels {
namespace {

// The format's definition.
double Value(int half) {
  const int exponent = (half >> 10) & 31;
  const double magnitude =
      exponent == 0 ? std::ldexp(half & 1023, -24) : std::ldexp(1024 + (half & 1023), exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(F16, EveryHalfIsWidenedExactlyAndComesBack) {
  for (int half = 0; half < 0x10000; ++half) {
    const float single = HalfToFloat(static_cast<uint16_t>(half));
    if ((half & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(single), (half & 0x3ff) != 0);
      EXPECT_EQ(std::isinf(single), (half & 0x3ff) == 0);
      EXPECT_EQ(std::signbit(single), (half & 0x8000) != 0);
      continue;
    }
    ASSERT_EQ(double{single}, Value(half));
    ASSERT_EQ(FloatToHalf(single), half);
  }
}

TEST(F16, RoundsToNearestTiesToEven) {
  for (int half = 0; half < 0x7bff; ++half) {  // between each two neighbours
    const auto middle = static_cast<float>((Value(half) + Value(half + 1)) / 2);
    ASSERT_EQ(FloatToHalf(middle), half % 2 == 0 ? half : half + 1) << half;
    ASSERT_EQ(FloatToHalf(std::nextafterf(middle, 0)), half);
    ASSERT_EQ(FloatToHalf(std::nextafterf(middle, 1e6f)), half + 1);
    ASSERT_EQ(FloatToHalf(-std::nextafterf(middle, 1e6f)), (half + 1) | 0x8000);
  }
}

TEST(F16, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(FloatToHalf(65504), 0x7bff);
  EXPECT_EQ(FloatToHalf(std::nextafterf(65520, 0)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520), 0x7c00);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xfc00);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(NAN))));
  EXPECT_EQ(FloatToHalf(1e-30f), 0);
}

}  // namespace
}  // namespace fastdecode::kernels
