// Plan against actual: the part that differs is named, and no other.
#include "plan/compare.h"

#include <gmock/gmock.h>

namespace fastdecode::plan {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// A step of 100 ms: 80 ms of S-part, 90 ms of R-part, 128 sequences.
StepPrediction Predicted() {
  StepPrediction step;
  step.step_s = 0.1;
  step.tokens_per_s = 1280;
  step.stages_s = 0.08;
  step.kernels_s = 0.09;
  step.workload = 10000;
  step.bound = "R-part";
  return step;
}

MeasuredSteps As(double step, double device, double rworker, double workload) {
  return {128 / step, step, device, rworker, workload};
}

TEST(CompareTest, WithinTheToleranceNothingDiffers) {
  const Comparison c = Compare(Predicted(), As(0.115, 0.07, 0.1, 10500));
  EXPECT_THAT(c.differs, IsEmpty());
  EXPECT_NEAR(1.15, c.tokens_ratio, 1e-9);
  EXPECT_NEAR(0.9, c.rworker_ratio, 1e-9);
  EXPECT_THAT(Describe(c), HasSubstr("1280.0     1113.0       1.15"));
}

TEST(CompareTest, NamesThePartThatDiffers) {
  EXPECT_THAT(Compare(Predicted(), As(0.16, 0.15, 0.09, 10000)).differs,
              StartsWith("T: the S-worker's device is slower"));
  EXPECT_THAT(Compare(Predicted(), As(0.19, 0.08, 0.18, 10000)).differs,
              StartsWith("R: the R-workers' kernels are slower"));
  EXPECT_THAT(Compare(Predicted(), As(0.19, 0.08, 0.18, 20000)).differs, StartsWith("W: the R-workers read more"));
  EXPECT_THAT(Compare(Predicted(), As(0.15, 0.08, 0.09, 10000)).differs, HasSubstr("neither T nor R"));
  EXPECT_THAT(Compare(Predicted(), As(0.05, 0.04, 0.04, 5000)).differs, StartsWith("W: the R-workers read fewer"));
}

TEST(CompareTest, NothingMeasuredIsNoDifference) {
  EXPECT_THAT(Compare(Predicted(), MeasuredSteps{}).differs, IsEmpty());
}

}  // namespace
}  // namespace fastdecode::plan
