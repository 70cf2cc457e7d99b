// The real API server over real sockets on loopback; the core is an echo.
#include "sworker/server/api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/api/api_client.h"
#include "common/api/curve_keys.h"
#include "tests/support/echo_sink.h"

namespace fastdecode {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kWaitMs = 20000;  // For what surely comes.

std::array<uint8_t, 32> SecretOf(uint8_t byte) {
  std::array<uint8_t, 32> secret;
  secret.fill(byte);
  return secret;
}

class ApiServerTest : public testing::Test {
 protected:
  ApiServerTest() {
    ModelConfig model;
    model.vocab_size = 100;
    ApiServerOptions options;
    options.listen = "tcp://127.0.0.1:0";
    options.info.vocab_size = 100;
    options.info.max_context = 1000;
    options.info.model_path = "/models/echo";
    auto server = ApiServer::Start(options, SecretOf(1), model, sink_);
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    sink_.StartPublishing(*server_);
  }
  ~ApiServerTest() override {
    sink_.Stop();
    server_->Stop();
  }

  std::unique_ptr<ApiClient> Connect() {
    auto client = ApiClient::Connect(server_->endpoint(), SecretOf(1), "test");
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return std::move(*client);
  }

  // Reads until request `id` has finished; checks that the tokens streamed meanwhile are its last ones.
  static FinishedMessage Finish(ApiClient& client, RequestId id) {
    std::vector<int32_t> streamed;
    while (true) {
      auto message = client.Receive(kWaitMs);
      if (!message.ok()) {
        ADD_FAILURE() << message.status().ToString();
        return {};
      }
      if (auto* tokens = std::get_if<TokensMessage>(&*message)) {
        for (size_t i = 0; i < tokens->ids.size(); ++i) {
          if (tokens->ids[i] == id) streamed.push_back(tokens->tokens[i]);
        }
      }
      auto* finished = std::get_if<FinishedMessage>(&*message);
      if (finished == nullptr || finished->id != id) continue;
      const auto& all = finished->token_ids;
      EXPECT_TRUE(streamed.size() <= all.size() && std::equal(streamed.rbegin(), streamed.rend(), all.rbegin()));
      return *finished;
    }
  }

  int64_t Stat(const char* name) {
    const auto stats = Connect()->Stats(false);
    EXPECT_TRUE(stats.ok());
    return stats->at(name).get<int64_t>();
  }
  // Waits until the core's statistic has the value.
  void Await(const char* name, int64_t value) {
    for (int i = 0; i < kWaitMs / 20 && Stat(name) != value; ++i) std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(Stat(name), value);
  }

  EchoSink sink_{std::chrono::microseconds(200)};
  std::unique_ptr<ApiServer> server_;
};

SubmitMessage Asking(RequestId id, std::vector<int32_t> prompt, int64_t max_tokens) {
  SubmitMessage submit;
  submit.id = id;
  submit.prompt = std::move(prompt);
  submit.max_tokens = max_tokens;
  return submit;
}

TEST_F(ApiServerTest, AnswersARequest) {
  auto client = Connect();
  EXPECT_EQ(client->info().model_path, "/models/echo");
  SubmitMessage submit = Asking(5, {7, 8, 9}, 4);
  submit.seed = 123;
  ASSERT_TRUE(client->Submit(submit).ok());
  const auto accepted = client->Receive(kWaitMs);
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(std::get<AcceptedMessage>(*accepted).seed, 123u);
  const FinishedMessage finished = Finish(*client, 5);
  EXPECT_EQ(finished.finish_reason, "length");
  EXPECT_EQ(finished.prompt_tokens, 3);
  EXPECT_THAT(finished.token_ids, ElementsAre(7, 8, 9, 7));
  EXPECT_FALSE(finished.logprobs.has_value());
  EXPECT_EQ(finished.seed, 123u);
}

TEST_F(ApiServerTest, DrawsASeedAndReportsIt) {
  auto client = Connect();
  ASSERT_TRUE(client->Submit(Asking(1, {1}, 1)).ok());
  ASSERT_TRUE(client->Submit(Asking(2, {1}, 1)).ok());
  const uint64_t first = Finish(*client, 1).seed;
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, Finish(*client, 2).seed);
}

TEST_F(ApiServerTest, LogprobsAndSilence) {
  auto client = Connect();
  SubmitMessage with = Asking(1, {1, 2}, 300);
  with.logprobs = true;
  SubmitMessage silent = Asking(2, {3, 4}, 300);
  silent.stream = false;
  ASSERT_TRUE(client->Submit(with).ok() && client->Submit(silent).ok() && client->Submit(Asking(3, {5}, 300)).ok());
  std::map<RequestId, FinishedMessage> finished;
  size_t with_logprob = 0;
  size_t without = 0;
  while (finished.size() < 3) {
    auto message = client->Receive(kWaitMs);
    ASSERT_TRUE(message.ok()) << message.status().ToString();
    if (auto* done = std::get_if<FinishedMessage>(&*message)) finished[done->id] = *done;
    auto* tokens = std::get_if<TokensMessage>(&*message);
    for (size_t i = 0; tokens != nullptr && i < tokens->ids.size(); ++i) {
      ASSERT_NE(tokens->ids[i], 2u);
      const bool has = !tokens->logprobs.empty() && tokens->logprobs[i].has_value();
      EXPECT_EQ(has, tokens->ids[i] == 1);
      ++(has ? with_logprob : without);
    }
  }
  EXPECT_EQ(with_logprob, 300u);
  EXPECT_EQ(without, 300u);
  EXPECT_EQ(finished[1].logprobs->size(), 300u);
  EXPECT_EQ(finished[2].token_ids.size(), 300u);
}

TEST_F(ApiServerTest, InvalidRequestsEndWithTheirOwnError) {
  auto client = Connect();
  ASSERT_TRUE(client->Submit(Asking(1, {}, 4)).ok());
  ASSERT_TRUE(client->Submit(Asking(2, {100}, 4)).ok());
  ASSERT_TRUE(client->Submit(Asking(3, std::vector<int32_t>(1000, 1), 4)).ok());
  ASSERT_TRUE(client->Submit(Asking(4, {1}, 0)).ok());
  ASSERT_TRUE(client->Submit(Asking(5, {1}, 2)).ok());
  EXPECT_EQ(Finish(*client, 1).error_code, "empty_prompt");
  EXPECT_EQ(Finish(*client, 2).error_code, "bad_token");
  EXPECT_EQ(Finish(*client, 3).error_code, "too_long");
  EXPECT_EQ(Finish(*client, 4).error_code, "bad_parameter");
  EXPECT_EQ(Finish(*client, 5).finish_reason, "length");
}

TEST_F(ApiServerTest, CancelEndsARequestAndNoOther) {
  auto client = Connect();
  ASSERT_TRUE(client->Submit(Asking(1, {1}, 900)).ok() && client->Submit(Asking(2, {2}, 50)).ok());
  ASSERT_TRUE(client->Cancel(1).ok() && client->Cancel(77).ok());
  const FinishedMessage cancelled = Finish(*client, 1);
  EXPECT_EQ(cancelled.finish_reason, "cancelled");
  EXPECT_LT(cancelled.token_ids.size(), 900u);
  EXPECT_EQ(Finish(*client, 2).token_ids.size(), 50u);
}

TEST_F(ApiServerTest, ManyClientsGetEachTheirOwn) {
  constexpr int kClients = 4;
  constexpr RequestId kRequests = 50;
  std::vector<std::unique_ptr<ApiClient>> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.push_back(Connect());
    for (RequestId id = 0; id < kRequests; ++id) {
      ASSERT_TRUE(clients.back()->Submit(Asking(id, {c, static_cast<int32_t>(id)}, 3)).ok());
    }
  }
  for (int c = 0; c < kClients; ++c) {
    std::set<RequestId> seen;
    while (seen.size() < kRequests) {
      auto message = clients[static_cast<size_t>(c)]->Receive(kWaitMs);
      ASSERT_TRUE(message.ok()) << message.status().ToString();
      const auto* finished = std::get_if<FinishedMessage>(&*message);
      if (finished == nullptr) continue;
      EXPECT_TRUE(seen.insert(finished->id).second);
      EXPECT_THAT(finished->token_ids, ElementsAre(c, static_cast<int32_t>(finished->id), c));
    }
  }
}

TEST_F(ApiServerTest, AVanishedClientsRequestsAreCancelled) {
  auto client = Connect();
  SubmitMessage silent = Asking(1, {1}, 900);
  silent.stream = false;             // Nothing is sent but heartbeats, and they notice.
  sink_.SetPass(milliseconds(100));  // It would take 90 s.
  ASSERT_TRUE(client->Submit(silent).ok());
  ASSERT_TRUE(client->Receive(kWaitMs).ok());
  client.reset();
  Await("cancelled", 1);
  Await("running", 0);
}

TEST_F(ApiServerTest, AnotherSecretIsRefused) {
  const auto client = ApiClient::Connect(server_->endpoint(), SecretOf(2), "test");
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), StatusCode::kPermissionDenied) << client.status().ToString();
  auto good = Connect();
  ASSERT_TRUE(good->Submit(Asking(1, {1}, 1)).ok());
  EXPECT_EQ(Finish(*good, 1).finish_reason, "length");
}

TEST_F(ApiServerTest, NobodyThere) {
  const std::string endpoint = server_->endpoint();
  auto client = Connect();
  sink_.Stop();
  server_->Stop();
  const auto message = client->Receive(kWaitMs);
  EXPECT_EQ(message.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(message.status().message(), HasSubstr("is gone"));
  const auto later = ApiClient::Connect(endpoint, SecretOf(1), "test");
  EXPECT_EQ(later.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(later.status().message(), HasSubstr("nobody listens"));
}

TEST_F(ApiServerTest, ShutdownAnswersEverybody) {
  auto client = Connect();
  ASSERT_TRUE(client->Submit(Asking(1, {1}, 999)).ok());
  ASSERT_TRUE(client->Receive(kWaitMs).ok());
  server_->StopAccepting();
  ASSERT_TRUE(client->Submit(Asking(2, {1}, 1)).ok());
  EXPECT_EQ(Finish(*client, 2).error_code, "shutting_down");
  sink_.Stop();
  server_->Stop();
  EXPECT_EQ(Finish(*client, 1).error_code, "shutting_down");
}

TEST_F(ApiServerTest, StatsAndWindow) {
  auto client = Connect();
  ASSERT_TRUE(client->Submit(Asking(1, {1}, 20)).ok());
  const auto first = client->Stats(true);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->at("submitted"), 1);
  EXPECT_EQ(first->at("api").at("clients"), 1);
  EXPECT_EQ(Finish(*client, 1).token_ids.size(), 20u);  // What came before the stats was kept.
  const auto second = client->Stats(false);
  ASSERT_TRUE(second.ok());
  EXPECT_LE(second->at("window").at("steps"), 21);
}

TEST(ApiServer, APortThatIsTakenIsOneClearError) {
  EchoSink sink{std::chrono::microseconds(200)};
  ApiServerOptions options;
  options.listen = "tcp://127.0.0.1:0";
  auto first = ApiServer::Start(options, SecretOf(1), {}, sink);
  ASSERT_TRUE(first.ok());
  options.listen = (*first)->endpoint();
  const auto second = ApiServer::Start(options, SecretOf(1), {}, sink);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("Address already in use"));
  options.listen = "ipc://x";
  EXPECT_FALSE(ApiServer::Start(options, SecretOf(1), {}, sink).ok());
}

}  // namespace
}  // namespace fastdecode
