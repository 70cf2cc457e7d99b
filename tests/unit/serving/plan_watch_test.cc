// What the S-worker makes of the profile that its config names.
#include "sworker/serving/plan_watch.h"

#include <gmock/gmock.h>

#include "common/base/logging.h"
#include "plan/profile.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const google::LogMessageTime&, const char* message,
            size_t length) override {
    lines_.emplace_back(message, length);
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

class PlanWatchTest : public testing::Test {
 protected:
  // 4 layers, T(B) = 1 ms, R = 1 us; measured over shm.
  PlanWatchTest() {
    config_.model_config.hidden_size = config_.model_config.intermediate_size = 8;
    config_.model_config.vocab_size = 8;
    config_.model_config.attention = {4, 1, 1, 8};
    config_.model.layers = 4;
    config_.model.dtype = DType::kF32;
    config_.sworker.threads = 1;
    config_.rworkers.count = 1;
    config_.pipeline.mini_batches = 2;
    config_.pipeline.max_batch = 16;
    config_.max_context = 64;
    config_.plan.profile = testing::TempDir() + "plan_watch_profile.json";
    Write("shm");
  }

  void Write(const std::string& transport) {
    plan::ModelProfile model;
    model.name = "toy";
    model.key = plan::KeyOf(config_);
    model.key.transport = transport;
    model.layer = plan::Curve({{1, 1e-3, 0}, {100, 1e-3, 0}});
    plan::RWorkerProfile rworker;
    rworker.attend.seconds_per_token = 1e-6;
    model.rworkers.push_back(rworker);
    plan::Profile profile;
    profile.models.push_back(model);
    ASSERT_TRUE(plan::SaveProfile(profile, config_.plan.profile).ok());
  }

  Config config_;
};

TEST_F(PlanWatchTest, NoProfileNoWatch) {
  config_.plan.profile.clear();
  EXPECT_EQ(nullptr, *PlanWatch::Make(config_));
  EXPECT_TRUE(ApplyPlan(&config_).ok());
  EXPECT_EQ(0, config_.load_control.workload_limit);
}

// T of a mini-batch of 8 rows is 1 ms, so each of the two may read 1000 tokens meanwhile.
TEST_F(PlanWatchTest, GivesTheWorkloadLimitUnlessTheConfigDoes) {
  LogLines log;
  ASSERT_TRUE(ApplyPlan(&config_).ok());
  EXPECT_NEAR(2000, static_cast<double>(config_.load_control.workload_limit), 10);
  EXPECT_THAT(log.lines(), testing::Contains(HasSubstr("load_control.workload_limit: ")));
  config_.load_control.workload_limit = 123;
  ASSERT_TRUE(ApplyPlan(&config_).ok());
  EXPECT_EQ(123, config_.load_control.workload_limit);
  config_.load_control = {.enabled = false};
  ASSERT_TRUE(ApplyPlan(&config_).ok());
  EXPECT_EQ(0, config_.load_control.workload_limit);
}

TEST_F(PlanWatchTest, SaysOnceAMinuteHowItGoes) {
  auto watch = PlanWatch::Make(config_);
  ASSERT_TRUE(watch.ok()) << watch.status().message();
  Timeline timeline(2);
  LogLines log;
  const int64_t minute = 60'000 * kMs;
  for (int64_t begin = 0; begin < 2 * minute + 1000 * kMs; begin += 100 * kMs) {
    (*watch)->PassDone({.mini_batch = 0, .begin_ns = begin, .end_ns = begin + 100 * kMs, .rows = 8, .workload = 80},
                       timeline);
  }
  ASSERT_EQ(2u, log.lines().size());
  EXPECT_THAT(log.lines()[0], AllOf(HasSubstr("plan: a step takes 100 ms, predicted 4.3"), HasSubstr("; what is ")));
  const nlohmann::json stats = (*watch)->Stats(timeline.Window());
  EXPECT_EQ(1210, stats["passes"]);
  EXPECT_NEAR(100, stats["step_ms"]["measured"].get<double>(), 1e-6);
  (*watch)->Reset();
  EXPECT_EQ(0, (*watch)->Stats(timeline.Window())["passes"]);
}

TEST_F(PlanWatchTest, RefusesTimesOverAnotherTransport) {
  const auto watch = PlanWatch::Make(config_);
  ASSERT_TRUE(watch.ok());
  EXPECT_TRUE((*watch)->CheckTransports({"shm"}).ok());
  for (const std::set<std::string>& kinds : {std::set<std::string>{"tcp"}, {"shm", "tcp"}}) {
    EXPECT_THAT((*watch)->CheckTransports(kinds).message(), HasSubstr("was measured over shm, and rows go over "));
  }
  config_.transport.kind = "tcp";
  EXPECT_THAT(PlanWatch::Make(config_).status().message(),
              AllOf(HasSubstr("plan.profile: "), HasSubstr("transport shm instead of tcp")));
  EXPECT_FALSE(ApplyPlan(&config_).ok());
  Write(plan::kAnyTransport);  // of data sheets
  EXPECT_TRUE((*PlanWatch::Make(config_))->CheckTransports({"tcp"}).ok());
}

}  // namespace
}  // namespace fastdecode
