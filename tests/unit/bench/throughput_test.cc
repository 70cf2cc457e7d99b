#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>

#include "bench/throughput/report.h"
#include "bench/throughput/summary.h"
#include "bench/throughput/workload.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

std::string Write(const std::string& content) {
  const std::string path = testing::TempDir() + "trace";
  std::ofstream(path) << content;
  return path;
}

ServerInfo Server() {
  ServerInfo server;
  server.vocab_size = 1000;
  server.max_context = 512;
  server.max_batch = 32;
  return server;
}

TEST(Workload, ClipsATraceToTheContext) {
  WorkloadOptions options;
  options.trace = Write("2023-11-16 18:15:40.0,374,44\n2023-11-16 18:15:42.0,100,5000\n2023-11-16 18:15:44.0,0,0\n");
  const auto workload = MakeWorkload(options, Server());
  ASSERT_TRUE(workload.ok()) << workload.status().ToString();
  ASSERT_EQ(workload->requests.size(), 3u);
  EXPECT_EQ(workload->in_flight, 32);
  EXPECT_EQ(workload->requests[0].prompt_tokens, 256);
  EXPECT_EQ(workload->requests[0].output_tokens, 44);
  EXPECT_EQ(workload->requests[1].prompt_tokens, 100);
  EXPECT_EQ(workload->requests[1].output_tokens, 412);
  EXPECT_EQ(workload->requests[2].prompt_tokens, 1);
  EXPECT_EQ(workload->requests[2].output_tokens, 1);
}

TEST(Workload, RateSetsTheArrivals) {
  WorkloadOptions options;
  options.trace = Write("2023-11-16 18:15:40.0,1,1\n2023-11-16 18:15:42.0,1,1\n");
  options.rate = 4;
  const auto workload = MakeWorkload(options, Server());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->in_flight, 0);
  EXPECT_NEAR(workload->requests[1].arrival_s, 0.5, 1e-6);
  options.requests = 3;
  EXPECT_THAT(MakeWorkload(options, Server()).status().message(), HasSubstr("has only 2"));
}

TEST(Workload, FixedLengths) {
  WorkloadOptions options;
  options.prompt_tokens = 100;
  options.output_tokens = 412;
  options.batch = 8;
  const auto workload = MakeWorkload(options, Server());
  ASSERT_TRUE(workload.ok());
  EXPECT_EQ(workload->requests.size(), 16u);
  EXPECT_EQ(workload->in_flight, 8);
  options.output_tokens = 413;
  EXPECT_THAT(MakeWorkload(options, Server()).status().message(), HasSubstr("more than the context of 512"));
}

TEST(Workload, PromptsRepeatAndDiffer) {
  const auto prompt = RandomPrompt(1, 7, 2000, 50);
  EXPECT_EQ(prompt, RandomPrompt(1, 7, 2000, 50));
  EXPECT_NE(prompt, RandomPrompt(1, 8, 2000, 50));
  EXPECT_NE(prompt, RandomPrompt(2, 7, 2000, 50));
  EXPECT_EQ(*std::min_element(prompt.begin(), prompt.end()), 0);
  EXPECT_EQ(*std::max_element(prompt.begin(), prompt.end()), 49);
}

// Nearest rank: the worked example of https://en.wikipedia.org/wiki/Percentile.
TEST(Summary, NearestRank) {
  const Summary five = Summarize({15, 20, 35, 40, 50});
  EXPECT_EQ(five.p50, 35);
  EXPECT_EQ(five.p90, 50);
  EXPECT_EQ(five.mean, 32);
  const Summary ten = Summarize({20, 15, 13, 10, 8, 8, 7, 6, 16, 3});
  EXPECT_EQ(ten.p50, 8);
  EXPECT_EQ(ten.max, 20);
  EXPECT_EQ(Summarize({}).max, 0);
  EXPECT_EQ(SummaryFromJson(ToJson(five)).p90, 50);
}

TEST(Report, HasTheFieldsThatScriptsRelyOn) {
  Measured measured;
  measured.wall_s = 2;
  measured.output_tokens = 100;
  measured.server = {{"window",
                      {{"steps", 10},
                       {"wire_bytes", 5000},
                       {"share", {{"s_part", 0.5}, {"idle", 0.5}}},
                       {"workload", {{"peak", 7}, {"limit", 9}, {"mean", 3.5}}}}}};
  const Workload workload = {.requests = {{0, 3, 4}}, .in_flight = 1};
  const auto report = ToJson(measured, workload);
  for (const char* name : {"tokens_per_s", "requests", "failed", "prompt_tokens", "output_tokens", "ttft_ms", "itl_ms",
                           "steps", "step_ms", "share", "workload", "wire_bytes_per_token", "config", "machine"}) {
    EXPECT_TRUE(report.contains(name)) << name;
  }
  EXPECT_EQ(report["tokens_per_s"], 50);
  EXPECT_EQ(report["wire_bytes_per_token"], 50);
  EXPECT_EQ(report["share"]["s_part"], 0.5);
  EXPECT_EQ(report["workload"]["limit"], 9);
  EXPECT_THAT(Table(report), HasSubstr("50.0 tokens/s"));
  // A server that was lost leaves no stats.
  measured.server = nlohmann::json::object();
  EXPECT_THAT(Table(ToJson(measured, workload)), HasSubstr("50.0 tokens/s"));
}

TEST(Bar, FillsToAnEighth) {
  EXPECT_EQ(Bar(0, 4), "····");
  EXPECT_EQ(Bar(1, 4), "████");
  EXPECT_EQ(Bar(0.5, 4), "██··");
  EXPECT_EQ(Bar(0.5 + 1.0 / 32, 4), "██▏·");
  EXPECT_EQ(Bar(7, 2), "██");
  EXPECT_EQ(Bar(-1, 2), "··");
}

}  // namespace
}  // namespace fastdecode
