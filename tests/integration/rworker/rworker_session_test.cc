// A whole session, S side and R side in one process: results, counters, faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rworker/host_limits.h"
#include "rworker/server.h"
#include "tests/integration/rworker/harness.h"
#include "tests/integration/rworker/session_client.h"
#include "tests/support/count_allocations.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

// f16 keeps 11 bits and |O| < 2; the rest is f32 arithmetic.
constexpr double kTolerance = 2e-3;

class RWorkerSession : public testing::Test {
 protected:
  RWorkerSession() {
    rworker::ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.secret = TestSecret();
    options.kv_memory.bytes = 16 << 20;
    options.threads = 2;
    options.pin = false;
    options.prefault = false;
    Result<std::unique_ptr<rworker::RWorkerServer>> server = rworker::RWorkerServer::Start(options);
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }

  std::unique_ptr<rworker::RWorkerServer> server_;
};

TEST_F(RWorkerSession, RowsAgreeWithAttentionInDoublePrecision) {
  PoolHarness pool({server_->address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  EXPECT_EQ(joined.grant.threads, 2);
  EXPECT_EQ(joined.grant.kernel, server_->kernel());
  EXPECT_EQ(joined.grant.transport, TransportKind::kShm) << joined.grant.transport_why;
  EXPECT_GT(joined.grant.kv_blocks, 0);
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  for (uint64_t sequence : {11U, 12U, 13U}) client.Prefill(sequence, static_cast<uint32_t>(sequence * 5));
  client.Prefill(21, 1);
  for (int i = 0; i < 40; ++i) {
    ASSERT_LT(client.Step(0, {11, 12, 13}), kTolerance);
    // This R-worker's W of these rows: what each has cached, and its new token.
    EXPECT_EQ(client.last_rows().context_tokens, client.tokens(11) + client.tokens(12) + client.tokens(13));
    EXPECT_GT(client.last_rows().compute_ns, 0U);
    ASSERT_LT(client.Step(1, {21}), kTolerance);
  }
  // Two mini-batches under way at once.
  for (int i = 0; i < 10; ++i) {
    client.BeginStep(0, {12, 11});
    client.BeginStep(1, {21, 13});
    for (uint16_t layer = 0; layer < 2; ++layer) {
      client.SendLayer(0, layer);
      client.SendLayer(1, layer);
      ASSERT_LT(client.ReceiveLayer(0, layer), kTolerance);
      ASSERT_LT(client.ReceiveLayer(1, layer), kTolerance);
    }
    client.EndStep(0);
    client.EndStep(1);
  }
}

// Elements of K and V are up to 2: a step of int8 is 1/64 of that, one of int4 a quarter.
TEST_F(RWorkerSession, EveryFormatServes) {
  struct Case {
    kernels::KvCodes codes;
    int64_t token_bytes;  // of a KV head and layer
    double tolerance;
  };
  for (const Case& c : {Case{{1, 1}, 64, kTolerance}, Case{{2, 2}, 64, 0.02}, Case{{3, 3}, 36, 0.05},
                        Case{{4, 4}, 20, 0.6}, Case{{3, 4}, 28, 0.6}, Case{{4, 1}, 42, 0.6}}) {
    SCOPED_TRACE(kernels::Describe(c.codes));
    SessionOptions options = SmallSession();
    options.kv = c.codes;
    PoolHarness pool({server_->address()}, options);
    PoolHarness::Joined joined = pool.WaitJoined();
    EXPECT_EQ(joined.grant.kv_token_bytes, 2 * 2 * c.token_bytes);
    EXPECT_EQ(joined.grant.kv_blocks, (16 << 20) / (joined.grant.kv_token_bytes * options.block_tokens));
    SessionClient client(joined.endpoint.get(), options.shape);
    client.Prefill(1, 45);
    client.Prefill(2, 70);
    for (int i = 0; i < 30; ++i) ASSERT_LT(client.Step(0, {1, 2}), c.tolerance);
    EXPECT_EQ(pool.FreshStats().kv_token_bytes, joined.grant.kv_token_bytes);
    EXPECT_EQ(pool.FreshStats().kv_beyond_range, 0);
  }
}

// Pretended: both nodes have all CPUs of this process.
TEST(RWorkerOverTwoNodes, ServesAsOneDoes) {
  rworker::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.secret = TestSecret();
  options.kv_memory.bytes = 8 << 20;
  options.threads = 2;
  for (int i = 0; i < 2; ++i) options.topology.nodes.push_back({rworker::kAnyNode, rworker::AllowedCpus(), -1});
  auto server = rworker::RWorkerServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  PoolHarness pool({(*server)->address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  EXPECT_EQ(joined.grant.kv_memory, 8 << 20);
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  for (uint64_t sequence : {11U, 12U, 13U, 14U}) client.Prefill(sequence, static_cast<uint32_t>(sequence * 5));
  for (int i = 0; i < 10; ++i) ASSERT_LT(client.Step(0, {13, 11, 14, 12}), kTolerance);
  RWorkerStats stats = pool.FreshStats();
  EXPECT_EQ(stats.total_blocks, joined.grant.kv_blocks);
  EXPECT_EQ(stats.total_blocks - stats.free_blocks, 3 + 3 + 3 + 3) << "blocks of 32 tokens";
}

TEST_F(RWorkerSession, HeartbeatsCarryWhatIsThere) {
  PoolHarness pool({server_->address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.Prefill(1, 40);
  client.Prefill(2, 16);
  for (int i = 0; i < 3; ++i) client.Step(0, {1, 2});
  client.Step(1, {});
  RWorkerStats stats = pool.FreshStats();
  EXPECT_EQ(stats.incarnation, joined.grant.incarnation);
  EXPECT_EQ(stats.total_blocks, joined.grant.kv_blocks);
  EXPECT_EQ(stats.total_blocks - stats.free_blocks, 2 + 1) << "43 and 19 tokens in blocks of 32";
  EXPECT_EQ(stats.sequences, 2);
  EXPECT_EQ(stats.workload, 43 + 19);
  EXPECT_EQ(stats.kv_tokens_appended, 2 * (40 + 16));
  EXPECT_EQ(stats.rows, 3 * 2 * 2);
  client.Free(1);
  stats = pool.FreshStats();
  EXPECT_EQ(stats.workload, 19);
  EXPECT_EQ(stats.peak_workload, 43 + 19);
  client.Free(2);
  client.Free(2);  // unknown by now: freed all the same
  stats = pool.FreshStats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  EXPECT_EQ(stats.sequences, 0);
  EXPECT_EQ(stats.workload, 0);
}

TEST_F(RWorkerSession, TheSteadyStateAllocatesNothing) {
  PoolHarness pool({server_->address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.set_check(false);
  const std::vector<uint64_t> first = {1, 2, 3}, second = {4};
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) client.Prefill(sequence, 30);
  auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      client.Step(0, first);
      client.Step(1, second);
    }
  };
  steps(20);
  pool.FreshStats();
  uint64_t before = CountedAllocations();
  ASSERT_GT(before, 0U) << "they are counted";
  steps(150);
  pool.FreshStats();  // so that heartbeats fall into the count, too
  EXPECT_EQ(CountedAllocations() - before, 0U);
}

TEST_F(RWorkerSession, WhatAPeerDoesWrongEndsItsSessionWithTheReason) {
  struct Case {
    const char* reason;
    Lane lane;
    void (*make)(MessageHeader&);
  };
  const Case cases[] = {
      {"StepBegin: 17 bytes for 1 rows of 16", Lane::kDecode,
       [](MessageHeader& h) {
         h.type = static_cast<uint16_t>(MessageType::kStepBegin);
         h.rows = 1;
         h.payload_bytes = 17;
       }},
      {"KvAppend: 128 bytes for 4294967295 rows", Lane::kBulk,
       [](MessageHeader& h) {
         h.type = static_cast<uint16_t>(MessageType::kKvAppend);
         h.rows = 0xffffffff;
         h.payload_bytes = 128;
       }},
      {"dtype 2, expected f16", Lane::kDecode,
       [](MessageHeader& h) {
         h.type = static_cast<uint16_t>(MessageType::kQkvRows);
         h.dtype = 2;
       }},
      {"(KvAppend) on the decode lane", Lane::kDecode,
       [](MessageHeader& h) { h.type = static_cast<uint16_t>(MessageType::kKvAppend); }},
      {"a message of type 16", Lane::kDecode,
       [](MessageHeader& h) { h.type = static_cast<uint16_t>(MessageType::kORows); }},
      {"", Lane::kBulk,  // no such sequence: AttentionService's words
       [](MessageHeader& h) {
         h.type = static_cast<uint16_t>(MessageType::kPrefillDone);
         h.sequence = 99;
         h.position = 5;
       }},
      {"", Lane::kDecode,  // a mini-batch that was not asked for
       [](MessageHeader& h) {
         h.type = static_cast<uint16_t>(MessageType::kStepBegin);
         h.mini_batch = 9;
       }},
  };
  PoolHarness pool({server_->address()});
  for (const Case& c : cases) {
    PoolHarness::Joined joined = pool.WaitJoined();
    SessionClient client(joined.endpoint.get(), SmallSession().shape);
    MessageHeader header;
    c.make(header);
    client.Send(c.lane, header);
    Result<RecvSlot> fault = client.Receive();
    ASSERT_TRUE(fault.ok()) << fault.status().ToString();
    ASSERT_EQ(fault->header().type, static_cast<uint16_t>(MessageType::kFault));
    std::string text(reinterpret_cast<const char*>(fault->payload()), fault->header().payload_bytes);
    EXPECT_THAT(text, HasSubstr(c.reason));
    EXPECT_FALSE(text.empty());
    Status gone = client.Receive().status();
    EXPECT_EQ(gone.code(), StatusCode::kUnavailable) << gone.ToString();
    PoolHarness::Lost lost = pool.WaitLost();
    EXPECT_EQ(lost.incarnation, joined.grant.incarnation);
    EXPECT_THAT(lost.reason.message(), HasSubstr(text)) << "the control connection says it, too";
  }
  PoolHarness::Joined joined = pool.WaitJoined();
}

TEST_F(RWorkerSession, AnotherShapeMayFollow) {
  for (int layers : {2, 3, 1}) {
    SessionOptions options = SmallSession();
    options.shape = {layers, 6, 3, 24};
    PoolHarness pool({server_->address()}, options);
    PoolHarness::Joined joined = pool.WaitJoined();
    SessionClient client(joined.endpoint.get(), options.shape);
    client.Prefill(1, 50);
    EXPECT_LT(client.Step(0, {1}), kTolerance);
    EXPECT_EQ(pool.FreshStats().sequences, 1);
  }
}

TEST_F(RWorkerSession, ReportLostBringsANewLife) {
  PoolHarness pool({server_->address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  pool.pool().ReportLost(0, joined.grant.incarnation + 1, Unavailable("about another life"));
  pool.pool().ReportLost(0, joined.grant.incarnation, Unavailable("the engine says so"));
  PoolHarness::Lost lost = pool.WaitLost();
  EXPECT_EQ(lost.reason.message(), "the engine says so");
  PoolHarness::Joined again = pool.WaitJoined();
  EXPECT_NE(again.grant.incarnation, joined.grant.incarnation);
  // Late news of the old life change nothing.
  pool.pool().ReportLost(0, joined.grant.incarnation, Unavailable("late"));
  SessionClient client(again.endpoint.get(), SmallSession().shape);
  client.Prefill(1, 5);
  EXPECT_EQ(pool.FreshStats().incarnation, again.grant.incarnation);
}

TEST_F(RWorkerSession, TwoRWorkersAndOneThatIsNotThere) {
  rworker::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.secret = TestSecret();
  options.kv_memory.bytes = 8 << 20;
  options.threads = 1;
  auto other = rworker::RWorkerServer::Start(options);
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  // Port 1 refuses; 192.0.2.1 (for documentation only) never answers.
  PoolHarness pool({"127.0.0.1:1", server_->address(), "192.0.2.1:7200", (*other)->address()});
  PoolHarness::Joined first = pool.WaitJoined(1, std::chrono::milliseconds(3000));
  PoolHarness::Joined second = pool.WaitJoined(3, std::chrono::milliseconds(3000));
  EXPECT_FALSE(pool.pool().WaitAllJoined(std::chrono::milliseconds(100)));
  auto missing = pool.pool().missing();
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0].index, 0);
  EXPECT_THAT(missing[0].reason.message(), HasSubstr("nothing listens there"));
  EXPECT_EQ(missing[1].address, "192.0.2.1:7200");
  EXPECT_FALSE(missing[1].reason.ok());
}

TEST_F(RWorkerSession, NamesAreLookedUp) {
  std::string port = server_->address().substr(server_->address().rfind(':'));
  PoolHarness pool({"localhost" + port, "no-such-host.invalid:1"});
  PoolHarness::Joined joined = pool.WaitJoined(0);
  EXPECT_EQ(joined.grant.address, "localhost" + port);
  auto missing = pool.pool().missing();
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].address, "no-such-host.invalid:1");
}

TEST(RWorkerPool, RefusesOptionsThatMakeNoSense) {
  RWorkerCallbacks callbacks;
  auto start = [&](std::vector<std::string> addresses, const SessionOptions& options) {
    return RWorkerPool::Start(std::move(addresses), TestSecret(), options, AllocatePageableSlots, callbacks).status();
  };
  SessionOptions options = SmallSession();
  EXPECT_EQ(start({}, options).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(start({"nowhere"}, options).code(), StatusCode::kInvalidArgument);
  options.transport.kind = TransportKind::kVerbs;
  options.transport.verbs.device = "no_such_device";
  EXPECT_THAT(start({"127.0.0.1:1"}, options).message(), HasSubstr("RDMA device"));
  options = SmallSession();
  options.peer_timeout_ms = options.heartbeat_ms;
  EXPECT_EQ(start({"127.0.0.1:1"}, options).code(), StatusCode::kInvalidArgument);
  options = SmallSession();
  options.max_rows = 0;
  EXPECT_EQ(start({"127.0.0.1:1"}, options).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastdecode
