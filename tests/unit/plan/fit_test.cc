// The line through measured R-parts.
#include "plan/fit.h"

#include <gtest/gtest.h>

namespace fastdecode::plan {
namespace {

std::vector<AttendSample> Line(double call, double row, double token) {
  std::vector<AttendSample> samples;
  for (const double rows : {1, 8, 64}) {
    for (const double cached : {16, 256, 1024}) {
      samples.push_back({rows, rows * cached, call + rows * row + rows * cached * token});
    }
  }
  return samples;
}

TEST(FitTest, FindsTheLineItCameFrom) {
  const RPartTimes times = FitRPart(Line(20e-6, 2e-6, 0.1e-6));
  EXPECT_NEAR(20e-6, times.seconds_per_call, 1e-10);
  EXPECT_NEAR(2e-6, times.seconds_per_row, 1e-11);
  EXPECT_NEAR(0.1e-6, times.seconds_per_token, 1e-12);
  EXPECT_LT(times.spread, 1e-6);
}

TEST(FitTest, NoTermFallsBelowNothing) {
  std::vector<AttendSample> samples = Line(0, 2e-6, 0.1e-6);
  for (AttendSample& sample : samples) sample.seconds *= sample.rows == 1 ? 0.9 : 1.0;  // asks for a negative call
  const RPartTimes times = FitRPart(samples);
  EXPECT_GE(times.seconds_per_call, 0);
  EXPECT_GE(times.seconds_per_row, 0);
  EXPECT_GT(times.seconds_per_token, 0);
  EXPECT_NEAR(0.1, times.spread, 0.06);
}

TEST(FitTest, OneSampleGivesTokensAlone) {
  const RPartTimes times = FitRPart({{8, 800, 8e-5}});
  EXPECT_NEAR(1e-7, times.seconds_per_token, 1e-12);
}

TEST(FitTest, MedianAndSpread) {
  EXPECT_DOUBLE_EQ(3, Median({5, 1, 3}));
  EXPECT_DOUBLE_EQ(2.5, Median({4, 1, 2, 3}));
  EXPECT_DOUBLE_EQ(1.0, Spread({2, 3, 1}));
  EXPECT_DOUBLE_EQ(0, Spread({7}));
}

TEST(FitServingTest, IsALineNowhereBelowZero) {
  const Curve line = FitServing({{1, 3.1e-3, 0.05}, {16, 4.6e-3, 0.06}, {64, 9.4e-3, 0.1}});  // 3 ms + 0.1 ms a row
  EXPECT_NEAR(3.1e-3, line.At(1), 1e-9);
  EXPECT_NEAR(7e-3, line.At(40), 1e-9);
  EXPECT_NEAR(4e-3, FitServing({{1, 5e-3, 1}, {64, 3e-3, 1}}).At(1), 1e-9) << "falls: the mean";
  EXPECT_NEAR(64e-6, FitServing({{1, -10e-6, 1}, {64, 4107e-6 / 64, 1}}).At(64), 1e-9) << "begins below 0";
  EXPECT_NEAR(0, FitServing({{1, -1e-3, 1}, {64, -5e-3, 1}}).At(64), 1e-8);
  EXPECT_NEAR(2e-3, FitServing({{4, 2e-3, 1}}).At(4), 1e-9) << "one point";
}

// An error counts as a share of its pass: a long one that is off by as much as the short ones are long moves nothing.
TEST(FitServingTest, ErrorsAreSharesOfThePass) {
  const Curve line = FitServing({{1, 1e-3, 1e-2}, {64, 1e-3, 1e-2}, {128, 51e-3, 1}});
  EXPECT_NEAR(1e-3, line.At(1), 0.1e-3);
  EXPECT_NEAR(1e-3, line.At(64), 0.1e-3);
}

}  // namespace
}  // namespace fastdecode::plan
