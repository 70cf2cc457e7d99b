// Recommendations: the paper's cluster, wishes that can't be had, a config that is read.
#include "plan/recommend.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fastdecode::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Llama-7b on an A10 of 24 GiB and sockets of EPYC 7002: the defaults of the figures.
Wishes Paper(int sockets) {
  Wishes wishes;
  wishes.model = *LoadModelConfig(std::string(SOURCE_DIR) + "/configs/models/llama-7b");
  Config config;
  config.model_config = wishes.model;
  config.sworker.device = "cuda:0";
  wishes.times = ProfileOfHardware({}, KeyOf(config), "llama-7b");
  wishes.sockets = sockets;
  wishes.device_memory = int64_t{24} << 30;
  wishes.socket_memory = int64_t{80} << 30;
  wishes.device_bytes_per_s = 480e9;
  return wishes;
}

TEST(RecommendTest, ThePapersClusterGetsThePapersBatchAndSockets) {
  const Result<Recommendation> r = Recommend(Paper(8));
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(1024, r->deployment.batch);
  EXPECT_EQ(8, r->deployment.rworkers);
  // Both sides are as busy with 9.0 by the paper's formula; with 8 the wire's time is not all hidden.
  EXPECT_THAT(r->shortfalls, ElementsAre(HasSubstr("could keep 9 R-workers busy; there are 8, which give")));
  EXPECT_GT(r->steady.step.tokens_per_s, 0.92 * Recommend(Paper(16))->steady.step.tokens_per_s);
  // On the device alone the KV cache's place is the limit; vLLM's 452 tokens/s stand in the paper.
  EXPECT_EQ("device only", r->options[0].name);
  EXPECT_NEAR(452, r->options[0].tokens_per_s, 0.2 * 452);
  // The whole batch has room below the limit.
  EXPECT_GE(r->workload_limit, 1024 * 1025 / 2 / 8);
}

TEST(RecommendTest, TooFewSocketsAreSaid) {
  Wishes wishes = Paper(2);
  wishes.socket_memory = int64_t{400} << 30;
  const Result<Recommendation> r = Recommend(wishes);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(2, r->deployment.rworkers);
  EXPECT_THAT(r->shortfalls, ElementsAre(HasSubstr("there are 2, which give")));
  EXPECT_EQ("R-part", r->steady.step.bound);
  EXPECT_GT(r->what_if[0].tokens_per_s, 1.3 * r->steady.step.tokens_per_s);  // one more socket
}

// Sockets that read a MB/s: 65,536 sequences could keep tens of thousands busy.
TEST(RecommendTest, SlowSocketsAreCountedInNoTime) {
  Wishes wishes = Paper(8);
  wishes.times.rworkers[0].attend.seconds_per_token = 16384 / 1e6;
  wishes.device_memory = wishes.socket_memory = 0;
  wishes.batch = 65536;
  const Result<Recommendation> r = Recommend(wishes);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(8, r->deployment.rworkers);
  EXPECT_THAT(r->shortfalls, ElementsAre(HasSubstr("could keep 4")));  // thousands
  wishes.batch = 1;                                                    // fewer sequences than sockets
  EXPECT_EQ(1, Recommend(wishes)->deployment.rworkers);
}

TEST(RecommendTest, WhatIsRecommendedIsAmongTheOptions) {
  Wishes wishes = Paper(13);
  for (RWorkerProfile& socket : wishes.times.rworkers) socket.attend.seconds_per_token *= 0.6 / 0.37;
  const Result<Recommendation> r = Recommend(wishes);
  ASSERT_TRUE(r.ok());
  EXPECT_GT(r->deployment.rworkers, 8);
  std::vector<int> recommended, sockets;
  for (const Option& option : r->options) {
    if (option.name == "recommended") recommended.push_back(option.sockets);
    sockets.push_back(option.sockets);
  }
  EXPECT_THAT(recommended, ElementsAre(r->deployment.rworkers));
  EXPECT_EQ(13, sockets.back()) << "all that there are";
}

TEST(RecommendTest, LatencyBoundsTheBatchAndWhatCannotBeHadIsSaid) {
  Wishes wishes = Paper(8);
  wishes.latency_s = 120;
  const Result<Recommendation> r = Recommend(wishes);
  ASSERT_TRUE(r.ok());
  EXPECT_LT(r->deployment.batch, 1024);
  EXPECT_LE(2 * 32 * 1024 * wishes.times.layer.At(r->deployment.batch / 2), 120);
  wishes.latency_s = 1;
  EXPECT_THAT(Recommend(wishes)->shortfalls, testing::Contains(HasSubstr("more than the 1.0 asked for")));
  wishes.latency_s = 0;
  wishes.tokens_per_s = 1e6;
  EXPECT_THAT(Recommend(wishes)->shortfalls, testing::Contains(HasSubstr("less than the 1000000 asked for")));
}

TEST(RecommendTest, MemoryBoundsTheBatchOrRefuses) {
  Wishes wishes = Paper(8);
  wishes.socket_memory = int64_t{16} << 30;  // 32 sequences of 512 MiB
  const Result<Recommendation> r = Recommend(wishes);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(256, r->deployment.batch);
  EXPECT_EQ(8, r->deployment.rworkers);
  EXPECT_THAT(r->shortfalls, testing::Contains(HasSubstr("batch 1024 would take 64.0 GiB of a socket's KV cache")));
  wishes.device_memory = int64_t{12} << 30;
  EXPECT_THAT(Recommend(wishes).status().message(), AllOf(HasSubstr("the device has 12.0 GiB"), HasSubstr("missing")));
  wishes = Paper(8);
  wishes.socket_memory = 1 << 20;
  EXPECT_THAT(Recommend(wishes).status().message(), HasSubstr("one sequence of 1024 tokens takes 0.50"));
  wishes.output_tokens = 4096;
  EXPECT_THAT(Recommend(wishes).status().message(), HasSubstr("2048 more than the model's context of 2048"));
}

// Means choose the batch and the sockets, the longest sequence what is allowed.
TEST(RecommendTest, TheLongestSequenceIsAllowed) {
  Wishes wishes = Paper(8);
  const Result<Recommendation> mean = Recommend(wishes);
  EXPECT_EQ(1024, mean->max_context);
  wishes.max_context = 2048;
  const Result<Recommendation> r = Recommend(wishes);
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(mean->deployment.batch, r->deployment.batch);
  EXPECT_EQ(mean->memory.kv_of_rworker, r->memory.kv_of_rworker);
  EXPECT_EQ(2048, MakeConfig(wishes, *r, {})["model"]["max_context"]);
  EXPECT_GE(r->workload_limit, 2048);
  wishes.batch = 1;  // of the mean length, but one of the longest must have its place
  EXPECT_EQ(int64_t{1} << 30, Recommend(wishes)->memory.kv_of_rworker);
  wishes.max_context = 4096;
  EXPECT_THAT(Recommend(wishes).status().message(), HasSubstr("4096 tokens: expected 1024"));
  wishes.max_context = 512;
  EXPECT_THAT(Recommend(wishes).status().message(), HasSubstr("512 tokens: expected 1024"));
}

TEST(RecommendTest, PricesRankTheOptions) {
  Wishes wishes = Paper(8);
  wishes.device_price = 2;
  wishes.socket_price = 0.5;
  const Result<Recommendation> r = Recommend(wishes);
  const Option& last = r->options.back();
  EXPECT_EQ(8, last.sockets);
  EXPECT_NEAR(last.tokens_per_s * 3600 / 6, last.tokens_per_money, 1e-6);
  EXPECT_GT(last.tokens_per_money, r->options[0].tokens_per_money);  // the device alone is dearer a token
  EXPECT_THAT(Table(wishes, *r), HasSubstr("tokens/money"));
  EXPECT_EQ(1024, ToJson(wishes, *r)["batch"]);
}

TEST(RecommendTest, WritesAConfigThatIsRead) {
  const Wishes wishes = Paper(8);
  const Result<Recommendation> r = Recommend(wishes);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("fastdecode-plan-test-" + std::to_string(getpid()))).string();
  const ConfigChoice choice{.model_path = std::string(SOURCE_DIR) + "/configs/models/llama-7b",
                            .device = "cuda:0",
                            .dtype = "f16",
                            .weights = "random",
                            .profile = "",
                            .hosts = {}};
  std::ofstream(path) << MakeConfig(wishes, *r, choice).dump();
  const Result<Config> config = LoadConfig(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(1024, config->pipeline.max_batch);
  EXPECT_EQ(8, config->rworkers.count);
  EXPECT_EQ(int64_t{64} << 30, config->rworkers.kv_memory.bytes);
  EXPECT_EQ(r->workload_limit, config->load_control.workload_limit);
}

}  // namespace
}  // namespace fastdecode::plan
