// Processes that die, freeze, vanish or are told to stop; with the real program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "tests/integration/rworker/harness.h"
#include "tests/integration/rworker/raw_client.h"
#include "tests/integration/rworker/session_client.h"

namespace fastdecode {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

void ExpectWorks(PoolHarness::Joined& joined) {
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.Prefill(1, 20);
  EXPECT_LT(client.Step(0, {1}), 2e-3);
}

TEST(RWorkerFailure, KilledIsNoticedAtOnceAndTakenBackWithANewLife) {
  auto rworker = std::make_unique<RWorkerProcess>();
  int port = rworker->port();
  PoolHarness pool({rworker->address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  ExpectWorks(joined);
  auto killed = steady_clock::now();
  rworker->Signal(SIGKILL);
  PoolHarness::Lost lost = pool.WaitLost();
  EXPECT_LT(steady_clock::now() - killed, milliseconds(SmallSession().peer_timeout_ms)) << "sooner than by silence";
  EXPECT_EQ(lost.incarnation, joined.grant.incarnation);
  EXPECT_THAT(lost.reason.message(), HasSubstr(rworker->address()));
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  EXPECT_EQ(client.Receive().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(pool.pool().stats(0).incarnation, 0U);
  ASSERT_EQ(pool.pool().missing().size(), 1U);

  rworker.reset();
  RWorkerProcess again({}, port);
  PoolHarness::Joined rejoined = pool.WaitJoined();
  EXPECT_NE(rejoined.grant.incarnation, joined.grant.incarnation);
  ExpectWorks(rejoined);
  EXPECT_TRUE(pool.pool().missing().empty());
}

TEST(RWorkerFailure, FrozenIsNoticedWithinItsTimeoutAndTakenBackWhenItThaws) {
  RWorkerProcess rworker;
  PoolHarness pool({rworker.address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  ExpectWorks(joined);
  auto frozen = steady_clock::now();
  rworker.Signal(SIGSTOP);
  PoolHarness::Lost lost = pool.WaitLost();
  auto took = steady_clock::now() - frozen;
  EXPECT_GE(took, milliseconds(SmallSession().peer_timeout_ms - 2 * SmallSession().heartbeat_ms));
  EXPECT_LT(took, milliseconds(SmallSession().peer_timeout_ms + 10 * SmallSession().heartbeat_ms));
  EXPECT_EQ(lost.reason.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(lost.reason.message(), HasSubstr("silent for"));
  joined.endpoint.reset();
  std::this_thread::sleep_for(milliseconds(500));
  rworker.Signal(SIGCONT);
  PoolHarness::Joined rejoined = pool.WaitJoined();
  EXPECT_NE(rejoined.grant.incarnation, joined.grant.incarnation);
  ExpectWorks(rejoined);
}

TEST(RWorkerFailure, KilledWhileMemoryIsMadeForItHoldsNoOtherUp) {
  RWorkerProcess other;
  auto killed = std::make_unique<RWorkerProcess>();
  const int port = killed->port();
  const std::string address = killed->address();
  killed.reset();
  SessionOptions options = SmallSession();
  options.transport.kind = TransportKind::kTcp;
  std::atomic<int> calls = 0;
  std::promise<void> asked, there;
  PoolHarness pool({other.address(), address}, options, TestSecret(), [&](size_t bytes) {
    if (++calls == 2) {
      asked.set_value();
      there.get_future().wait();
    }
    return AllocatePageableSlots(bytes);
  });
  const PoolHarness::Joined joined = pool.WaitJoined(0);
  killed = std::make_unique<RWorkerProcess>(std::vector<std::string>(), port);
  asked.get_future().wait();
  killed->Signal(SIGKILL);
  EXPECT_THAT(pool.WaitMissing("closed").message(), HasSubstr("closed")) << "though its memory is not there yet";
  EXPECT_EQ(pool.FreshStats(0).incarnation, joined.grant.incarnation);
  there.set_value();
  killed = std::make_unique<RWorkerProcess>(std::vector<std::string>(), port);
  pool.WaitJoined(1);
}

TEST(RWorkerFailure, AVanishedSWorkerFreesTheCacheForTheNext) {
  RWorkerProcess rworker;
  {
    PoolHarness pool({rworker.address()});
    PoolHarness::Joined joined = pool.WaitJoined();
    SessionClient client(joined.endpoint.get(), SmallSession().shape);
    for (uint64_t sequence = 1; sequence <= 5; ++sequence) client.Prefill(sequence, 100);
    EXPECT_LT(pool.FreshStats().free_blocks, joined.grant.kv_blocks);
  }
  PoolHarness next({rworker.address()});
  PoolHarness::Joined joined = next.WaitJoined();
  RWorkerStats stats = next.FreshStats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  EXPECT_EQ(stats.sequences, 0);
}

TEST(RWorkerFailure, AFrozenSWorkerLosesItsPlaceAfterItsTimeout) {
  RWorkerProcess rworker;
  RawClient control(rworker.address());
  ASSERT_TRUE(control.Prove(TestSecret().key).ok());
  SessionOptions options = SmallSession();
  options.name = "frozen";
  auto begin = steady_clock::now();
  control.WriteFrame(OpenFrom(options));
  SessionGrant grant;
  ASSERT_TRUE(control.ReadFrame(grant));
  ASSERT_TRUE(control.OfferTcp());
  RawClient decode(rworker.address()), bulk(rworker.address());
  ASSERT_TRUE(decode.Prove(control.session_key(), Purpose::kDecode, grant.incarnation).ok());
  ASSERT_TRUE(bulk.Prove(control.session_key(), Purpose::kBulk, grant.incarnation).ok());
  control.ReadyWithTcp();

  PoolHarness pool({rworker.address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  EXPECT_GE(steady_clock::now() - begin, milliseconds(options.peer_timeout_ms - 100));
  EXPECT_EQ(rworker.CountLog("with S-worker \"frozen\""), 2) << rworker.log();  // its start and its end
  EXPECT_EQ(rworker.CountLog("it has been silent for"), 1);
  EXPECT_TRUE(decode.PeerClosed());
  ExpectWorks(joined);
}

TEST(RWorkerFailure, TermSaysGoodbyeAndExitsWithZero) {
  for (int signal : {SIGTERM, SIGINT}) {
    RWorkerProcess rworker;
    PoolHarness pool({rworker.address()});
    PoolHarness::Joined joined = pool.WaitJoined();
    ExpectWorks(joined);
    auto asked = steady_clock::now();
    rworker.Signal(signal);
    EXPECT_EQ(rworker.WaitExit(), 0);
    EXPECT_LT(steady_clock::now() - asked, milliseconds(2000));
    EXPECT_THAT(pool.WaitLost().reason.message(), HasSubstr("the R-worker is shutting down"));
  }
  RWorkerProcess idle;
  idle.Signal(SIGTERM);
  EXPECT_EQ(idle.WaitExit(), 0);
}

TEST(RWorkerFailure, TermEndsItThoughItsSWorkerSendsFramesWithoutEnd) {
  RWorkerProcess rworker;
  RawClient control(rworker.address());
  ASSERT_TRUE(control.Prove(TestSecret().key).ok());
  control.WriteFrame(OpenFrom(SmallSession()));
  SessionGrant grant;
  ASSERT_TRUE(control.ReadFrame(grant));
  std::vector<char> beats;
  FrameHeader header;
  header.type = static_cast<uint16_t>(Heartbeat::kType);
  header.payload_bytes = sizeof(Heartbeat);
  for (int i = 0; i < 1000; ++i) {
    const auto* bytes = reinterpret_cast<const char*>(&header);
    beats.insert(beats.end(), bytes, bytes + sizeof(header));
    beats.resize(beats.size() + sizeof(Heartbeat));
  }
  std::promise<void> flooded;
  std::atomic<bool> ended = false;
  auto flood = std::async(std::launch::async, [&] {
    const auto patience = steady_clock::now() + std::chrono::seconds(20);
    for (int i = 0; !ended && steady_clock::now() < patience; ++i) {
      if (i == 300) flooded.set_value();  // more than sockets hold: it is being read
      control.Write(beats.data(), beats.size());
    }
    return ended.load();
  });
  flooded.get_future().wait();
  rworker.Signal(SIGTERM);
  EXPECT_EQ(rworker.WaitExit(), 0);
  ended = true;
  EXPECT_TRUE(flood.get()) << "it ended when the frames did";
}

TEST(RWorkerFailure, TheLogHasNoLineAMessage) {
  RWorkerProcess rworker;
  PoolHarness pool({rworker.address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  SessionClient client(joined.endpoint.get(), SmallSession().shape);
  client.set_check(false);
  client.Prefill(1, 10);
  std::string before = rworker.log();
  for (int i = 0; i < 200; ++i) client.Step(0, {1});
  pool.FreshStats();
  EXPECT_EQ(rworker.log(), before);
}

TEST(RWorkerProgram, TermEndsAStartThatTakesLong) {
  TempFolder folder;
  std::string secret = folder.File("secret");
  std::ofstream(secret) << std::string(64, 's');
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  auto begin = steady_clock::now();
  // Half of this host's memory is seconds of touching; nearly none of it is taken.
  ProgramEnd end = RunRWorker({"--secret_file=" + secret, "--listen=127.0.0.1:0", "--threads=1", "--kv_memory=50%"},
                              SIGTERM, milliseconds(200));
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end.output, HasSubstr("50 % of the"));
  EXPECT_THAT(end.output, HasSubstr("shutting down"));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(3000));
}

TEST(RWorkerProgram, TakesAShareOfTheFreeMemory) {
  RWorkerProcess rworker({"--kv_memory=1%"});
  PoolHarness pool({rworker.address()});
  PoolHarness::Joined joined = pool.WaitJoined();
  EXPECT_GT(joined.grant.kv_memory, 1 << 20);
  EXPECT_THAT(rworker.ready_line(), HasSubstr("kv_memory=" + std::to_string(joined.grant.kv_memory)));
  ExpectWorks(joined);
}

TEST(RWorkerProgram, TheSelfTestReportsEveryFindingAndEndsWithZero) {
  ProgramEnd end = RunRWorker({"--self-test", "--self_test_shapes=16x16x128", "--self_test_seconds=30"});
  EXPECT_EQ(end.status, 0) << end.output;
  for (const char* what : {"CPU ", "clock ", "memory ", "NUMA ", "huge pages ", "agrees with the reference", "barrier ",
                           "read ", "attention   16x16x128: ", "self-test: fine\n"}) {
    EXPECT_THAT(end.output, HasSubstr(what));
  }
  ProgramEnd slow = RunRWorker({"--self-test", "--kernel=reference", "--self_test_seconds=0.001", "--threads=1"});
  EXPECT_EQ(slow.status, 0) << slow.output;
  EXPECT_THAT(slow.output, HasSubstr("reference"));
  EXPECT_THAT(slow.output, HasSubstr("read        not measured: no time left"));
  EXPECT_THAT(slow.output, HasSubstr("64x8x128: not measured: no time left"));
}

TEST(RWorkerProgram, UsageErrorsAndStartFailuresHaveTheirStatus) {
  TempFolder folder;
  std::string secret = folder.File("secret");
  std::ofstream(secret) << std::string(64, 's');
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const std::string with_secret = "--secret_file=" + secret;
  struct Case {
    std::vector<std::string> flags;
    int status;
    const char* says;
  };
  RWorkerProcess taken;
  const Case cases[] = {
      {{"--help"}, 0, "--kv_memory"},
      {{"--version"}, 0, "fastdecode-rworker 0."},
      {{"--no_such_flag"}, 2, "no_such_flag"},
      {{"--threads=many", with_secret}, 2, "many"},
      {{"stray", with_secret}, 2, "stray"},
      {{}, 2, "--secret_file"},
      {{"--secret_file=" + folder.File("none")}, 2, "does not exist"},
      {{with_secret, "--transport=verbs", "--verbs_device=no_such_device"}, 3, "RDMA device"},
      {{with_secret, "--verbs_port=0"}, 2, "--verbs_port is out of 1 to 255"},
      {{with_secret, "--transport=pigeon"}, 2, "expected auto, tcp, shm or verbs"},
      {{with_secret, "--kv_memory=lots"}, 2, "lots"},
      {{with_secret, "--kv_memory=96%"}, 2, "from 1% to 95%"},
      {{with_secret, "--listen=nowhere"}, 2, "HOST:PORT"},
      {{with_secret, "--kernel=f99"}, 2, "f99"},
      {{with_secret, "--numa_node=99"}, 2, "there is no NUMA node 99 on this machine"},
      {{with_secret, "--numa_node=-2"}, 2, "--numa_node"},
      {{"--self_test", "--kernel=f99"}, 2, "f99"},
      {{"--self_test", "--numa_node=99"}, 2, "there is no NUMA node 99"},
      {{"--self_test", "--self_test_shapes=32x5x128"}, 2, "32x5x128"},
      {{"--self_test", "--self_test_seconds=0"}, 2, "--self_test_seconds"},
      {{with_secret, "--listen=" + taken.address()}, 3, "the port is in use"},
      {{with_secret, "--listen=127.0.0.1:0", "--kv_memory=1000000GiB"}, 3, "lower kv_memory"},
  };
  for (const Case& c : cases) {
    ProgramEnd end = RunRWorker(c.flags);
    EXPECT_EQ(end.status, c.status) << end.output;
    EXPECT_THAT(end.output, HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace fastdecode
