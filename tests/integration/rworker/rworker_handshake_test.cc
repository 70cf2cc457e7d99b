// Whoever comes to an R-worker's port in a wrong way is refused with one log line, and
// nobody else is harmed. All against the real program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/integration/rworker/harness.h"
#include "tests/integration/rworker/raw_client.h"
#include "tests/integration/rworker/session_client.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

class RWorkerHandshake : public testing::Test {
 protected:
  // The port still serves: a whole session.
  void ExpectServes() {
    PoolHarness good({rworker_.address()});
    PoolHarness::Joined joined = good.WaitJoined();
    SessionClient client(joined.endpoint.get(), SmallSession().shape);
    client.Prefill(1, 20);
    EXPECT_LT(client.Step(0, {1}), 2e-3);
    ASSERT_TRUE(rworker_.alive());
  }
  void ExpectRefusedSession(const SessionOptions& options, const std::string& reason) {
    PoolHarness bad({rworker_.address()}, options);
    EXPECT_FALSE(bad.pool().WaitAllJoined(std::chrono::seconds(20)));
    auto missing = bad.pool().missing();
    ASSERT_EQ(missing.size(), 1U);
    EXPECT_THAT(missing[0].reason.message(), HasSubstr("rworker " + rworker_.address() + " refuses: "));
    EXPECT_THAT(missing[0].reason.message(), HasSubstr(reason));
    EXPECT_EQ(rworker_.CountLog(reason), 1);
  }
  int Refusals() const {
    std::string log = rworker_.log();
    int count = 0;
    for (size_t at = log.find("] refused "); at != std::string::npos; at = log.find("] refused ", at + 1)) ++count;
    return count;
  }
  void WaitRefusals(int count) {
    for (int i = 0; i < 500 && Refusals() < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(Refusals(), count);
  }

  RWorkerProcess rworker_;
};

TEST_F(RWorkerHandshake, ReadyLineNamesWhatStarted) {
  EXPECT_THAT(rworker_.ready_line(), testing::MatchesRegex("ready fastdecode-rworker 127.0.0.1:[0-9]+ threads=1 "
                                                           "kv_memory=16777216 kernel=[a-z0-9_]+\n"));
  ExpectServes();
}

TEST_F(RWorkerHandshake, AWrongSecret) {
  PoolHarness bad({rworker_.address()}, SmallSession(), TestSecret('x'));
  EXPECT_FALSE(bad.pool().WaitAllJoined(std::chrono::seconds(20))) << "and at once";
  EXPECT_THAT(bad.pool().missing().at(0).reason.message(), HasSubstr("has another secret"));
  EXPECT_EQ(rworker_.CountLog("it does not know the secret"), 1);
  ExpectServes();
}

TEST_F(RWorkerHandshake, AWrongVersionIsToldOurs) {
  RawClient client(rworker_.address());
  Hello hello;
  hello.version = 2;
  hello.purpose = 1;
  client.Write(hello);
  Reply reply;
  ASSERT_TRUE(client.Read(reply));
  EXPECT_EQ(reply.magic, kReplyMagic);
  EXPECT_EQ(reply.version, kProtocolVersion);
  EXPECT_EQ(reply.code, static_cast<uint16_t>(ReplyCode::kRefusedVersion));
  EXPECT_TRUE(client.PeerClosed());
  EXPECT_EQ(rworker_.CountLog("it speaks protocol version 2, this process speaks 3"), 1);
  ExpectServes();
}

TEST_F(RWorkerHandshake, ShapesThatItDoesNotHave) {
  SessionOptions options = SmallSession();
  options.shape.head_dim = 12;
  ExpectRefusedSession(options, "head_dim 12 is not in this build");
  options.shape.head_dim = 264;
  ExpectRefusedSession(options, "head_dim 264 is not in this build");
  options = SmallSession();
  options.shape.num_kv_heads = 3;
  ExpectRefusedSession(options, "no multiple of num_kv_heads 3");
  options = SmallSession();
  options.shape.num_layers = 5000;
  ExpectRefusedSession(options, "num_layers is 5000");
  ExpectServes();
}

// What the launch script starts: an R-worker of one deployment's model.
TEST(RWorkerOfOneModel, RefusesAnotherModelsShapeThoughItIsIdle) {
  RWorkerProcess rworker({"--model_shape=" + FormatShape(SmallSession().shape)});
  for (int32_t AttentionShape::*field : {&AttentionShape::num_layers, &AttentionShape::num_heads,
                                         &AttentionShape::num_kv_heads, &AttentionShape::head_dim}) {
    SessionOptions other = SmallSession();
    other.shape.*field *= 2;
    PoolHarness bad({rworker.address()}, other);
    EXPECT_FALSE(bad.pool().WaitAllJoined(std::chrono::seconds(20)));
    const std::string reason = "another model's shape: " + Describe(other.shape) +
                               "; this R-worker serves only 2 layers, 4 heads, 2 KV heads, head_dim 16 (--model_shape)";
    ASSERT_EQ(bad.pool().missing().size(), 1U);
    EXPECT_THAT(bad.pool().missing()[0].reason.message(), HasSubstr(reason));
    EXPECT_EQ(rworker.CountLog(reason), 1);
  }
  PoolHarness good({rworker.address()});
  PoolHarness::Joined joined = good.WaitJoined();
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.Prefill(1, 20);
  EXPECT_LT(client.Step(0, {1}), 2e-3);
}

TEST_F(RWorkerHandshake, FormatsAreLoggedOrRefusedByCode) {
  SessionOptions options = SmallSession();
  options.kv = {9, 1};
  ExpectRefusedSession(options, "kv_dtype 9 is not in this build: asked for as keys");
  options.kv = {1, 64};
  ExpectRefusedSession(options, "kv_dtype 64 is not in this build: asked for as values");
  ExpectServes();
  options.kv = {3, 4};
  PoolHarness good({rworker_.address()}, options);
  // 2 layers of 2 KV heads of 16: a key of 16 + 2 bytes, a value of 8 + 2.
  EXPECT_EQ(good.WaitJoined().grant.kv_token_bytes, 2 * 2 * (18 + 10));
  EXPECT_EQ(rworker_.CountLog("KV int8 keys, int4 values, 112 bytes a token"), 1);
}

TEST_F(RWorkerHandshake, MoreMemoryThanThereIs) {
  SessionOptions options = SmallSession();
  options.max_context = 1 << 20;  // 1 Mi tokens x 2 layers x 2 heads x 16 x 2 x 2 bytes = 256 MiB
  PoolHarness bad({rworker_.address()}, options);
  EXPECT_FALSE(bad.pool().WaitAllJoined(std::chrono::seconds(20)));
  EXPECT_EQ(bad.pool().missing().at(0).reason.code(), StatusCode::kResourceExhausted)
      << bad.pool().missing().at(0).reason.ToString();
  EXPECT_EQ(rworker_.CountLog("refused S-worker \"test sworker\""), 1);

  options = SmallSession();
  options.bulk_slot_bytes = size_t{1} << 30;
  ExpectRefusedSession(options, "(--max_buffer_memory)");
  ExpectServes();
}

TEST_F(RWorkerHandshake, LengthsNearTheEndOfTheirType) {
  int refusals = 0;
  for (uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, (uint64_t{1} << 63) + 128}) {
    for (size_t lane = 0; lane < 2; ++lane) {
      RawClient client(rworker_.address());
      ASSERT_TRUE(client.Prove(TestSecret().key).ok());
      SessionOpen open = OpenFrom(SmallSession());
      open.lanes[lane].slot_bytes = length;
      client.WriteFrame(open);
      Refusal refusal;
      ASSERT_TRUE(client.ReadFrame(refusal));
      EXPECT_THAT(GetText(refusal.text), HasSubstr("slot_bytes is " + std::to_string(length)));
      ++refusals;
    }
  }
  for (uint32_t length : {0xffffffffU, 0x80000000U, 0U, 143U, 145U}) {
    RawClient client(rworker_.address());
    ASSERT_TRUE(client.Prove(TestSecret().key).ok());
    FrameHeader header;
    header.type = 1;
    header.payload_bytes = length;
    client.Write(header);
    EXPECT_TRUE(client.PeerClosed()) << length;
    ++refusals;
  }
  WaitRefusals(refusals);
  ExpectServes();
}

TEST_F(RWorkerHandshake, OneSWorkerAtATime) {
  auto first = std::make_unique<PoolHarness>(std::vector{rworker_.address()});
  PoolHarness::Joined joined = first->WaitJoined();
  SessionOptions options = SmallSession();
  options.name = "second";
  options.shape.num_layers = 3;
  {
    PoolHarness second({rworker_.address()}, options);
    Status reason = second.WaitMissing("is serving S-worker \"test sworker\" at 127.0.0.1:");
    EXPECT_THAT(reason.message(), HasSubstr("takes one S-worker at a time, with another model: 2 layers"));
    EXPECT_THAT(reason.message(), HasSubstr("asked for: 3 layers"));
  }
  // The first is not harmed, and its end makes room.
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.Prefill(1, 33);
  EXPECT_LT(client.Step(0, {1}), 2e-3);
  PoolHarness second({rworker_.address()}, options);
  first.reset();
  EXPECT_NE(second.WaitJoined().grant.incarnation, joined.grant.incarnation);
}

TEST_F(RWorkerHandshake, StreamsOfNoSessionOrWithoutItsKey) {
  RawClient stray(rworker_.address());
  EXPECT_EQ(stray.Prove(TestSecret().key, Purpose::kDecode, 12345).code(), StatusCode::kUnavailable);
  EXPECT_EQ(rworker_.CountLog("a data stream of incarnation 12345"), 1);

  // A session that waits for its streams takes only one that knows the session's own key.
  RawClient control(rworker_.address());
  ASSERT_TRUE(control.Prove(TestSecret().key).ok());
  control.WriteFrame(OpenFrom(SmallSession()));
  SessionGrant grant;
  ASSERT_TRUE(control.ReadFrame(grant));
  RawClient early(rworker_.address());
  EXPECT_EQ(early.Prove(control.session_key(), Purpose::kDecode, grant.incarnation).code(), StatusCode::kUnavailable)
      << "tcp has not been offered yet";
  ASSERT_TRUE(control.OfferTcp());
  RawClient thief(rworker_.address());
  EXPECT_EQ(thief.Prove(TestSecret().key, Purpose::kDecode, grant.incarnation).code(), StatusCode::kPermissionDenied);
  RawClient decode(rworker_.address());
  EXPECT_TRUE(decode.Prove(control.session_key(), Purpose::kDecode, grant.incarnation).ok());
  RawClient again(rworker_.address());
  EXPECT_EQ(again.Prove(control.session_key(), Purpose::kDecode, grant.incarnation).code(), StatusCode::kUnavailable);
  RawClient bulk(rworker_.address());
  EXPECT_TRUE(bulk.Prove(control.session_key(), Purpose::kBulk, grant.incarnation).ok());
}

TEST_F(RWorkerHandshake, AHandshakeCutAtEachByte) {
  const size_t total = sizeof(Hello) + sizeof(Proof) + sizeof(FrameHeader) + sizeof(SessionOpen);
  for (size_t cut = 0; cut < total; ++cut) {
    RawClient client(rworker_.address());
    ClientHandshake handshake(TestSecret().key, Purpose::kControl, 0, "rworker");
    Reply reply;
    size_t left = cut;
    auto write = [&](const void* bytes, size_t size) {
      client.Write(bytes, std::min(left, size));
      bool whole = left >= size;
      left -= std::min(left, size);
      return whole;
    };
    if (!write(&handshake.hello(), sizeof(Hello))) continue;
    ASSERT_TRUE(client.Read(reply));
    Proof proof = handshake.OnChallenge(reply).value();
    if (!write(&proof, sizeof(proof))) continue;
    ASSERT_TRUE(client.Read(reply));
    FrameHeader header;
    header.type = 1;
    header.payload_bytes = sizeof(SessionOpen);
    SessionOpen open = OpenFrom(SmallSession());
    if (write(&header, sizeof(header))) write(&open, sizeof(open));
  }
  WaitRefusals(static_cast<int>(total) - 1);  // all but the one that sent nothing
  ExpectServes();
}

TEST_F(RWorkerHandshake, RandomBytes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    RawClient client(rworker_.address());
    std::vector<uint8_t> bytes(48 + random() % 2000);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    client.Write(bytes.data(), bytes.size());
    EXPECT_TRUE(client.PeerClosed()) << "seed " << seed;
  }
  WaitRefusals(100);
  ExpectServes();
}

TEST_F(RWorkerHandshake, RandomFieldsOfAnAuthenticatedPeer) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    RawClient client(rworker_.address());
    ASSERT_TRUE(client.Prove(TestSecret().key).ok());
    SessionOpen open = OpenFrom(SmallSession());
    auto* bytes = reinterpret_cast<uint8_t*>(&open);
    for (int i = 0; i < 4; ++i) bytes[random() % offsetof(SessionOpen, name)] = static_cast<uint8_t>(random());
    client.WriteFrame(open);
    FrameHeader answer;
    ASSERT_TRUE(client.Read(answer)) << "a refusal or a grant, seed " << seed;
  }
  ExpectServes();
}

TEST_F(RWorkerHandshake, SilentConnectionsHoldNobodyUpAndAreDropped) {
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 100; ++i) {  // more than may be pending
    silent.push_back(std::make_unique<RawClient>(rworker_.address()));
    silent.back()->Write("F", 1);
  }
  auto begin = std::chrono::steady_clock::now();
  PoolHarness good({rworker_.address()});
  PoolHarness::Joined joined = good.WaitJoined();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500)) << "before their deadline";
  for (auto& client : silent) EXPECT_TRUE(client->PeerClosed());
  WaitRefusals(100);
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.Prefill(1, 5);
}

TEST_F(RWorkerHandshake, BadBytesInASessionEndItAndNothingElse) {
  struct Case {
    const char* reason;
    void (*spoil)(MessageHeader&);
  };
  const Case cases[] = {
      {"no message starts like this", [](MessageHeader& h) { h.magic = 7; }},
      {"slot holds", [](MessageHeader& h) { h.payload_bytes = 0xffffffff; }},
      {"unknown message type 99", [](MessageHeader& h) { h.type = 99; }},
      {"message of incarnation", [](MessageHeader& h) { ++h.incarnation; }},
  };
  for (const Case& c : cases) {
    RawClient control(rworker_.address());
    ASSERT_TRUE(control.Prove(TestSecret().key).ok());
    control.WriteFrame(OpenFrom(SmallSession()));
    SessionGrant grant;
    ASSERT_TRUE(control.ReadFrame(grant)) << c.reason;
    ASSERT_TRUE(control.OfferTcp());
    RawClient decode(rworker_.address()), bulk(rworker_.address());
    ASSERT_TRUE(decode.Prove(control.session_key(), Purpose::kDecode, grant.incarnation).ok());
    ASSERT_TRUE(bulk.Prove(control.session_key(), Purpose::kBulk, grant.incarnation).ok());
    control.ReadyWithTcp();
    MessageHeader header;
    header.incarnation = grant.incarnation;
    header.type = static_cast<uint16_t>(MessageType::kFree);
    c.spoil(header);
    bulk.Write(header);
    Goodbye goodbye;
    ASSERT_TRUE(control.ReadFrame(goodbye));
    EXPECT_THAT(GetText(goodbye.text), HasSubstr(c.reason));
    EXPECT_EQ(rworker_.CountLog(c.reason), 1);
    EXPECT_TRUE(control.PeerClosed());
    EXPECT_TRUE(decode.PeerClosed());
  }
  ExpectServes();
}

}  // namespace
}  // namespace fastdecode
