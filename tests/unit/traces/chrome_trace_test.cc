#include "common/traces/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace fastdecode {
namespace {

using testing::HasSubstr;

std::string Path() { return testing::TempDir() + "timeline.json"; }

nlohmann::json Read() {
  std::ifstream file(Path());
  return nlohmann::json::parse(file);
}

// Field names and types as the trace event format has them.
TEST(ChromeTrace, SpansCountersAndNames) {
  {
    auto trace = ChromeTrace::Create(Path());
    ASSERT_TRUE(trace.ok());
    (*trace)->NameProcess(1, "S-worker");
    (*trace)->NameLane({1, 3}, "device");
    (*trace)->Span({1, 3}, "S-part", 1'234'567, 2'000'005, {{"rows", 7}, {"W", 99}});
    (*trace)->Span({1, 3}, "empty", 5, 5);
    (*trace)->Counter(1, "W", 1000, -3);
    (*trace)->Instant({2, 4}, "lost", 42);
    ASSERT_TRUE((*trace)->Close().ok());
  }
  const nlohmann::json events = Read();
  ASSERT_EQ(events.size(), 5u) << "a span of no length is left out";
  EXPECT_EQ(events[0], nlohmann::json::parse(R"({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.0,
                                                 "args": {"name": "S-worker"}})"));
  EXPECT_EQ(events[1]["args"]["name"], "device");
  EXPECT_EQ(events[2], nlohmann::json::parse(R"({"ph": "X", "name": "S-part", "pid": 1, "tid": 3, "ts": 1234.567,
                                                 "dur": 765.438, "args": {"rows": 7, "W": 99}})"));
  EXPECT_EQ(events[3]["args"]["value"], -3);
  EXPECT_EQ(events[4]["ph"], "i");
  EXPECT_EQ(events[4]["ts"], 0.042);
}

TEST(ChromeTrace, EndsWhereItIsFull) {
  auto trace = ChromeTrace::Create(Path(), 2);
  ASSERT_TRUE(trace.ok());
  for (int i = 0; i < 5; ++i) (*trace)->Span({1, 1}, "x", i, i + 1);
  EXPECT_EQ((*trace)->dropped(), 3);
  ASSERT_TRUE((*trace)->Close().ok());
  EXPECT_EQ(Read().size(), 2u);
}

TEST(ChromeTrace, AFolderThatIsNotThereIsNamed) {
  const auto trace = ChromeTrace::Create("/nowhere/timeline.json");
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(trace.status().message(), HasSubstr("/nowhere/timeline.json cannot be written"));
}

TEST(TimelineTrace, LanesOfOneStageAndItsPass) {
  {
    auto file = ChromeTrace::Create(Path());
    ASSERT_TRUE(file.ok());
    TimelineTrace trace(std::move(*file), 2, 3);
    trace.Stage(1, 100, 200, 900, 1000);
    trace.RPart(2, 1, 1100, 2000);
    trace.Pass(1, 100, 2500, 64, 4096);
    ASSERT_TRUE(trace.Close().ok());
  }
  const nlohmann::json events = Read();
  std::map<std::string, std::string> lanes;
  std::map<std::string, std::string> drawn_at;
  for (const auto& event : events) {
    const std::string key = event["pid"].dump() + "/" + event["tid"].dump();
    if (event["name"] == "thread_name") lanes[key] = event["args"]["name"];
    if (event["ph"] == "X") drawn_at[event["name"]] = key;
  }
  EXPECT_EQ(lanes[drawn_at["copy in"]], "device");
  EXPECT_EQ(lanes[drawn_at["S-part"]], "device");
  EXPECT_EQ(lanes[drawn_at["pass"]], "mini-batch 1");
  EXPECT_EQ(lanes[drawn_at["R-part"]], "R-worker 2");
}

}  // namespace
}  // namespace fastdecode
