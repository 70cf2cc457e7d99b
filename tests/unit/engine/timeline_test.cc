#include "sworker/engine/timeline.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"

namespace fastdecode {
namespace {

constexpr int64_t kMs = 1'000'000;

double Sum(const TimelineWindow& w) {
  return static_cast<double>(w.s_part_ns + w.r_part_ns + w.wire_ns + w.copy_ns + w.scheduler_ns + w.idle_ns);
}

// Stages as the stream reports them, laid end to end with gaps between.
StageTimes Stage(int64_t begin, int64_t in, int64_t compute, int64_t out) {
  return {begin, begin + in, begin + in + compute, begin + in + compute + out};
}

TEST(Timeline, SharesSumToTheWallTime) {
  Timeline timeline(2);
  timeline.Reset();
  const int64_t start = NowNs();
  timeline.StageDone(0, Stage(start, 1, 2, 3), nullptr);
  const TimelineWindow window = timeline.Window();
  EXPECT_NEAR(Sum(window) / static_cast<double>(window.wall_ns), 1.0, 0.01);
}

TEST(Timeline, AGapIsTheRPartsUpToWhatItComputedAndTheWiresBeyond) {
  Timeline timeline(1);
  const int64_t t = NowNs() + 100 * kMs;  // after the constructor's own time
  timeline.StageDone(0, Stage(t, 0, kMs, 0), nullptr);
  const AttendedInfo info{.compute_ns = 3 * kMs, .queue_ns = 1 * kMs};
  timeline.StageDone(0, Stage(t + 11 * kMs, 2 * kMs, 5 * kMs, 1 * kMs), &info);
  const TimelineWindow window = timeline.Window();
  EXPECT_EQ(window.r_part_ns, 4 * kMs);
  EXPECT_EQ(window.wire_ns, 6 * kMs);
  EXPECT_EQ(window.copy_ns, 3 * kMs);
  EXPECT_EQ(window.s_busy_ns, 9 * kMs);
}

TEST(Timeline, OverlappedRPartCostsNothing) {
  Timeline timeline(2);
  const int64_t t = NowNs() + 100 * kMs;
  timeline.StageDone(0, Stage(t, 0, 10 * kMs, 0), nullptr);
  const AttendedInfo info{.compute_ns = 8 * kMs};
  timeline.StageDone(0, Stage(t + 10 * kMs, 0, 10 * kMs, 0), &info);
  EXPECT_EQ(timeline.Window().r_part_ns, 0);
  EXPECT_EQ(timeline.Window().wire_ns, 0);
}

TEST(Timeline, IdleTimeIsNotTheSchedulers) {
  Timeline timeline(1);
  const int64_t t = NowNs() + 100 * kMs;
  timeline.StageDone(0, Stage(t, 0, kMs, 0), nullptr);
  const int64_t scheduler_before = timeline.Window().scheduler_ns;
  const int64_t idle_before = timeline.Window().idle_ns;
  timeline.SetIdle(true, t + 2 * kMs);
  timeline.SetIdle(false, t + 42 * kMs);
  timeline.StageDone(0, Stage(t + 43 * kMs, 0, kMs, 0), nullptr);
  EXPECT_EQ(timeline.Window().idle_ns - idle_before, 40 * kMs);
  EXPECT_EQ(timeline.Window().scheduler_ns - scheduler_before, 2 * kMs);
}

TEST(Timeline, StepsAreCountedAMiniBatchAndTheirLengthsKept) {
  Timeline timeline(2);
  const std::vector<int64_t> workload = {70, 30};
  const int64_t t = NowNs();
  for (int i = 1; i <= 100; ++i) timeline.PassDone(i % 2, t, t + i * kMs, 4, workload);
  const TimelineWindow window = timeline.Window();
  EXPECT_EQ(window.steps, 50u);
  EXPECT_EQ(window.passes, 100u);
  EXPECT_EQ(window.decode_rows, 400u);
  EXPECT_EQ(window.workload_peak, 70);
  EXPECT_DOUBLE_EQ(window.step_ms.mean, 50.5);
  EXPECT_NEAR(window.step_ms.p50, 50, 1.5);  // buckets are 2 % wide
  EXPECT_NEAR(window.step_ms.p99, 99, 2.5);
  EXPECT_DOUBLE_EQ(window.step_ms.max, 100);
  timeline.Reset();
  EXPECT_EQ(timeline.Window().passes, 0u);
  timeline.PassDone(0, t, NowNs(), 4, workload);  // began before
  EXPECT_EQ(timeline.Window().passes, 1u);
  EXPECT_EQ(timeline.Window().step_ms.max, 0);
}

// The lanes of the simulator's timeline (tests/unit/traces has the format).
TEST(Timeline, WritesATrace) {
  const std::string path = testing::TempDir() + "engine_timeline.json";
  auto file = ChromeTrace::Create(path);
  ASSERT_TRUE(file.ok());
  TimelineTrace trace(std::move(*file), 2, 3);
  Timeline timeline(2);
  timeline.TraceTo(&trace);
  const int64_t t = NowNs() + 100 * kMs;
  const AttendedInfo info{
      .posted_ns = t - 20 * kMs, .arrived_ns = t - 10 * kMs, .compute_ns = 4 * kMs, .queue_ns = kMs};
  timeline.StageDone(1, Stage(t, kMs, 5 * kMs, 2 * kMs), &info);
  timeline.StageDone(Timeline::kPrefill, Stage(t + 20 * kMs, 0, 3 * kMs, 0), nullptr);
  const std::vector<int64_t> workload = {5, 9, 7};
  timeline.PassDone(1, t, t + 30 * kMs, 12, workload);
  timeline.RWorkerLost(2);
  ASSERT_TRUE(trace.Close().ok());
  std::ifstream written(path);
  std::map<std::string, nlohmann::json> events;
  for (const auto& event : nlohmann::json::parse(written)) events[event["name"]] = event;
  EXPECT_EQ(events["S-part"]["dur"], 5000);
  EXPECT_EQ(events["prefill"]["dur"], 3000);
  EXPECT_EQ(events["pass"]["args"]["W"], 9);
  EXPECT_EQ(events["R-part"]["dur"], 4000);
  // 10 ms there and back, 5 of them in the queue and the kernels: 2.5 ms on the way there.
  EXPECT_NEAR(events["S-part"]["ts"].get<double>() - events["R-part"]["ts"].get<double>(), 1000 + 20'000 - 3'500, 1);
  EXPECT_EQ(events["lost"]["tid"], 3);
}

}  // namespace
}  // namespace fastdecode
