// What verbs promises beyond the transports' contract: errors by name, late writes, long
// messages, and that nothing is left behind. Needs an RDMA device (tests/rdma has one).
#include "common/transport/verbs/verbs_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "common/transport/carrier.h"
#include "tests/contract/transport/raw_verbs_end.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr int64_t kPatienceNs = 20'000'000'000;

EndpointOptions SmallOptions() {
  EndpointOptions options;
  options.lanes[0] = {4096, 3, 3};
  options.lanes[1] = {1 << 16, 4, 2};
  options.incarnation = 77;
  options.peer = "peer X";
  return options;
}

std::shared_ptr<std::byte[]> Memory(const EndpointOptions& options) {
  return {static_cast<std::byte*>(std::aligned_alloc(64, EndpointMemoryBytes(options))),
          [](std::byte* pointer) { std::free(pointer); }};
}

std::shared_ptr<const VerbsDevice> Device() { return VerbsDevice::Open(VerbsOptions()).value(); }

std::unique_ptr<VerbsEndpoint> MakeEnd(const EndpointOptions& options, std::shared_ptr<std::byte[]> memory) {
  return VerbsEndpoint::Create(options, Device(), std::move(memory)).value();
}

// The first thing other than kWouldBlock.
Result<RecvSlot> Receive(Endpoint& endpoint, Endpoint* sender = nullptr) {
  for (const int64_t deadline = NowNs() + kPatienceNs; NowNs() < deadline;) {
    Result<RecvSlot> slot = endpoint.Poll();
    if (slot.ok() || slot.status().code() != StatusCode::kWouldBlock) return slot;
    if (sender != nullptr) (void)sender->Poll();
    if (!endpoint.PrepareWait()) continue;
    pollfd fd{endpoint.wait_fd(), POLLIN, 0};
    poll(&fd, 1, sender != nullptr ? 1 : 100);
  }
  return Status(StatusCode::kDeadlineExceeded, "nothing came");
}

SendSlot Prepare(Endpoint& endpoint, Lane lane, size_t payload_bytes) {
  SendSlot slot = endpoint.Acquire(lane).value();
  *slot.header() = MessageHeader();
  slot.header()->type = static_cast<uint16_t>(MessageType::kKvAppend);
  slot.header()->payload_bytes = static_cast<uint32_t>(payload_bytes);
  return slot;
}

struct Ends {
  std::unique_ptr<VerbsEndpoint> a, b;
};

Ends ConnectEnds(const EndpointOptions& options) {
  Ends ends{MakeEnd(options, Memory(options)), MakeEnd(options, Memory(options))};
  EXPECT_TRUE(ends.b->Connect(ends.a->hello(), 0, 0).ok());
  EXPECT_TRUE(ends.a->Connect(ends.b->hello(), 0, 0).ok());
  Status status = ends.a->CheckPath();
  for (const int64_t deadline = NowNs() + kPatienceNs;
       status.code() == StatusCode::kWouldBlock && NowNs() < deadline;) {
    pollfd fd{ends.a->wait_fd(), POLLIN, 0};
    poll(&fd, 1, 100);
    status = ends.a->CheckPath();
  }
  EXPECT_TRUE(status.ok()) << status.ToString();
  return ends;
}

class Verbs : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = VerbsDevice::Open(VerbsOptions()).status(); !status.ok()) {
      GTEST_SKIP() << status.message();
    }
  }

  // An endpoint and its other end by hand.
  void ConnectRaw() {
    end_ = MakeEnd(SmallOptions(), Memory(SmallOptions()));
    raw_ = std::make_unique<RawVerbsEnd>(end_->hello());
    ASSERT_TRUE(end_->Connect(raw_->hello(), 0, 0).ok());
  }

  std::unique_ptr<VerbsEndpoint> end_;
  std::unique_ptr<RawVerbsEnd> raw_;
};

TEST_F(Verbs, ALateWriteOfAnOldLifeLandsNowhere) {
  const EndpointOptions options = SmallOptions();
  const size_t bytes = EndpointMemoryBytes(options);
  std::shared_ptr<std::byte[]> memory = Memory(options);
  std::fill_n(memory.get(), bytes, std::byte{0});
  auto old_life = MakeEnd(options, memory);
  RawVerbsEnd peer(old_life->hello());
  ASSERT_TRUE(old_life->Connect(peer.hello(), 0, 0).ok());
  const std::vector<std::byte> late(1000, std::byte{9});
  ASSERT_TRUE(peer.WriteAt(Lane::kBulk, 0, late, Immediate{ImmediateKind::kMessage}.Pack()));
  EXPECT_NE(std::count(memory.get(), memory.get() + bytes, std::byte{9}), 0) << "while it lives it lands";
  old_life.reset();
  std::fill_n(memory.get(), bytes, std::byte{5});
  auto new_life = MakeEnd(options, memory);
  RawVerbsEnd next(new_life->hello());
  ASSERT_TRUE(new_life->Connect(next.hello(), 0, 0).ok());
  EXPECT_FALSE(peer.WriteAt(Lane::kBulk, 0, late, Immediate{ImmediateKind::kMessage}.Pack()));
  EXPECT_FALSE(peer.WriteAt(Lane::kDecode, 0, late, Immediate{ImmediateKind::kMessage}.Pack()));
  EXPECT_EQ(std::count(memory.get(), memory.get() + bytes, std::byte{5}), static_cast<int64_t>(bytes));
  EXPECT_EQ(new_life->Poll().status().code(), StatusCode::kWouldBlock);
}

TEST_F(Verbs, ThePeerMayWriteIntoReceiveSlotsOnly) {
  ConnectRaw();
  const std::vector<std::byte> bytes(64);
  const uint64_t ring = 2 << 16;  // of the bulk lane; beyond it is nobody's
  EXPECT_FALSE(raw_->WriteAt(Lane::kBulk, ring, bytes, Immediate{ImmediateKind::kMessage}.Pack()));
  ConnectRaw();
  EXPECT_FALSE(raw_->WriteAt(Lane::kBulk, static_cast<uint64_t>(-64), bytes, Immediate{}.Pack())) << "send slots";
}

TEST_F(Verbs, AnotherSessionsKeyReachesNothing) {
  const EndpointOptions options = SmallOptions();
  const auto device = Device();
  std::shared_ptr<std::byte[]> memory = Memory(options);
  std::fill_n(memory.get(), EndpointMemoryBytes(options), std::byte{0});
  auto of_liar = VerbsEndpoint::Create(options, device, Memory(options)).value();
  auto of_other = VerbsEndpoint::Create(options, device, memory).value();
  RawVerbsEnd liar(of_liar->hello()), other(of_other->hello());
  ASSERT_TRUE(of_liar->Connect(liar.hello(), 0, 0).ok());
  ASSERT_TRUE(of_other->Connect(other.hello(), 0, 0).ok());
  const std::vector<std::byte> bytes(64, std::byte{9});
  const uint32_t message = Immediate{ImmediateKind::kMessage}.Pack();
  const auto& there = of_other->hello().lanes[1];
  EXPECT_FALSE(liar.WriteTo(Lane::kBulk, there.ring, there.key, bytes, message));
  EXPECT_EQ(std::count(memory.get(), memory.get() + EndpointMemoryBytes(options), std::byte{9}), 0);
  EXPECT_TRUE(other.WriteTo(Lane::kBulk, there.ring, there.key, bytes, message)) << "its own peer may";
}

TEST_F(Verbs, AnImmediateIsCheckedBeforeItIsBelieved) {
  struct Case {
    uint32_t immediate;
    const char* says;
  };
  const Case cases[] = {
      {0, "unknown immediate 0"},
      {0xffffffff, "unknown immediate 4294967295"},
      {Immediate{ImmediateKind::kMessage, 1}.Pack(), "a message in slot 1, which is not the sender's"},
      {Immediate{ImmediateKind::kMessage, 4095}.Pack(), "slot 4095"},
      {Immediate{ImmediateKind::kCredit, 0}.Pack(), "a credit for slot 0, which holds no message"},
      {Immediate{ImmediateKind::kCredit, 4095}.Pack(), "a credit for slot 4095"},
  };
  EndpointOptions options = SmallOptions();
  options.lanes[1].recv_slots = 1;
  for (const Case& c : cases) {
    auto end = MakeEnd(options, Memory(options));
    RawVerbsEnd raw(end->hello());
    ASSERT_TRUE(end->Connect(raw.hello(), 0, 0).ok());
    ASSERT_TRUE(raw.WriteAt(Lane::kBulk, 0, std::vector<std::byte>(64), c.immediate));
    const Status status = Receive(*end).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(c.says));
  }
}

TEST_F(Verbs, ASlotThatWasNotReleasedMayNotBeWrittenAgain) {
  ConnectRaw();
  MessageHeader header;
  header.type = static_cast<uint16_t>(MessageType::kKvAppend);
  header.incarnation = 77;
  ASSERT_TRUE(raw_->Write(Lane::kBulk, std::as_bytes(std::span(&header, 1))));
  ASSERT_TRUE(Receive(*end_).ok());
  ASSERT_TRUE(raw_->Write(Lane::kBulk, std::as_bytes(std::span(&header, 1))));
  EXPECT_THAT(Receive(*end_).status().message(), HasSubstr("slot 0, which is not the sender's"));
}

TEST_F(Verbs, APeerThatVanishedIsNoticedByItsName) {
  ConnectRaw();
  const SendSlot slot = Prepare(*end_, Lane::kBulk, 1000);
  raw_->Vanish();
  ASSERT_TRUE(end_->Post(slot).ok());
  // Reported, because the next message needs the slot.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(end_->Post(Prepare(*end_, Lane::kBulk, 10'000)).ok());
  ASSERT_EQ(end_->Acquire(Lane::kBulk).status().code(), StatusCode::kWouldBlock);
  const int64_t began_ns = NowNs();
  const Status status = Receive(*end_).status();
  EXPECT_LT(NowNs() - began_ns, 10'000'000'000) << "a dead peer must be known within 5 s";
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("peer X: bulk stream: retry exceeded"));
}

TEST_F(Verbs, MessagesLongerThanTheDeviceWritesAtOnceArriveWhole) {
  EndpointOptions options = SmallOptions();
  const uint64_t longest = Device()->port_attr().max_msg_sz;
  if (longest > (64 << 20)) GTEST_SKIP() << "this device writes " << longest << " bytes at once";
  options.lanes[0] = {longest + (1 << 16), 1, 1};
  Ends ends = ConnectEnds(options);
  for (const size_t payload : {longest - 64, longest - 63, longest + 100, size_t{5}}) {
    const SendSlot slot = Prepare(*ends.a, Lane::kDecode, payload);
    for (size_t i = 0; i < payload; i += 4093) slot.payload()[i] = static_cast<std::byte>(i * 31 + payload);
    slot.payload()[payload - 1] = std::byte{77};
    ASSERT_TRUE(ends.a->Post(slot).ok());
    const Result<RecvSlot> received = Receive(*ends.b, ends.a.get());
    ASSERT_TRUE(received.ok()) << received.status().ToString();
    ASSERT_EQ(received->header().payload_bytes, payload);
    EXPECT_EQ(received->payload()[payload - 1], std::byte{77});
    for (size_t i = 0; i + 1 < payload; i += 4093) {
      ASSERT_EQ(received->payload()[i], static_cast<std::byte>(i * 31 + payload)) << i;
    }
    ends.b->Release(*received);
    // Both sides go on until the slot and its credit are back.
    for (const int64_t deadline = NowNs() + kPatienceNs; NowNs() < deadline;) {
      (void)ends.b->Poll();
      (void)ends.a->Poll();
      const Result<SendSlot> free = ends.a->Acquire(Lane::kDecode);
      if (!free.ok()) continue;
      ends.a->Abandon(*free);
      break;
    }
  }
}

TEST_F(Verbs, ReleasesInAnyOrderStarveNobody) {
  EndpointOptions options = SmallOptions();
  options.lanes[1] = {4096, 4, 4};
  Ends ends = ConnectEnds(options);
  const auto exchange = [&](uint64_t step) {
    while (true) {
      Result<SendSlot> slot = ends.a->Acquire(Lane::kBulk);
      (void)ends.a->Poll();
      if (!slot.ok()) continue;
      *slot->header() = MessageHeader();
      slot->header()->type = static_cast<uint16_t>(MessageType::kFree);
      slot->header()->step = step;
      EXPECT_TRUE(ends.a->Post(*slot).ok());
      break;
    }
    Result<RecvSlot> received = Receive(*ends.b, ends.a.get());
    EXPECT_TRUE(received.ok());
    EXPECT_EQ(received->header().step, step);
    return *received;
  };
  std::vector<RecvSlot> kept;
  for (uint64_t step = 0; step < 3; ++step) kept.push_back(exchange(step));
  for (uint64_t step = 3; step < 50; ++step) ends.b->Release(exchange(step));  // one slot must do
  ends.b->Release(kept[1]);
  for (uint64_t step = 50; step < 100; ++step) ends.b->Release(exchange(step));
}

// So many of the lane's slots, which the caller has then.
std::vector<SendSlot> AcquireAll(Endpoint& endpoint, Lane lane, size_t count) {
  std::vector<SendSlot> slots;
  for (const int64_t deadline = NowNs() + kPatienceNs; slots.size() < count && NowNs() < deadline;) {
    Result<SendSlot> slot = endpoint.Acquire(lane);
    if (slot.ok()) slots.push_back(*slot);
    (void)endpoint.Poll();
  }
  EXPECT_EQ(slots.size(), count);
  return slots;
}

TEST_F(Verbs, NoDoorbellIsRungThatAnotherOneMakesNeedless) {
  EndpointOptions options = SmallOptions();
  options.lanes[1] = {4096, 4, 4};
  Ends ends = ConnectEnds(options);
  const uint64_t before_a = ends.a->counters().doorbells, before_b = ends.b->counters().doorbells;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ends.a->Post(Prepare(*ends.a, Lane::kBulk, 1000)).ok());
  // All are acknowledged, so the other end sees them together.
  for (const SendSlot& slot : AcquireAll(*ends.a, Lane::kBulk, 4)) ends.a->Abandon(slot);
  EXPECT_EQ(ends.a->counters().doorbells, before_a + 4)
      << "whoever waits for a slot that will be reported asks for none";
  for (int i = 0; i < 4; ++i) {
    const Result<RecvSlot> received = Receive(*ends.b);
    ASSERT_TRUE(received.ok()) << received.status().ToString();
    ends.b->Release(*received);
  }
  EXPECT_EQ(ends.b->Poll().status().code(), StatusCode::kWouldBlock);
  EXPECT_EQ(ends.b->counters().doorbells, before_b + 2) << "two credits each, since more messages were there";
  EXPECT_EQ(ends.b->counters().credit_messages, 2U);
}

TEST_F(Verbs, ASlotBehindAWriteThatNobodyReportsComesBack) {
  EndpointOptions options = SmallOptions();
  options.lanes[1] = {4096, 4, 4};
  Ends ends = ConnectEnds(options);
  const uint64_t before = ends.a->counters().doorbells;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ends.a->Post(Prepare(*ends.a, Lane::kBulk, 1000)).ok());
  EXPECT_EQ(AcquireAll(*ends.a, Lane::kBulk, 4).size(), 4U);
  EXPECT_EQ(ends.a->counters().doorbells, before + 4) << "one that asks for the report";
}

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1;
};

TEST_F(Verbs, ItPollsBeforeItSleepsForAsLongAsThatPays) {
  EndpointOptions options = SmallOptions();
  options.lanes[1] = {4096, 8, 8};  // so many that no credit goes back meanwhile
  FakeClock clock;
  const auto sender = MakeEnd(options, Memory(options));
  const auto end = VerbsEndpoint::Create(options, Device(), Memory(options), 100, clock).value();
  ASSERT_TRUE(end->Connect(sender->hello(), 0, 0).ok());
  ASSERT_TRUE(sender->Connect(end->hello(), 0, 0).ok());
  const auto sleeps_after = [&](int64_t ns) {
    EXPECT_FALSE(end->PrepareWait());
    clock.now_ns += ns - 1;
    EXPECT_FALSE(end->PrepareWait());
    clock.now_ns += 1;
    EXPECT_TRUE(end->PrepareWait()) << "after " << ns;
  };
  const auto exchange = [&] {
    ASSERT_TRUE(sender->Post(Prepare(*sender, Lane::kBulk, 10)).ok());
    pollfd fd{end->wait_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&fd, 1, 10'000), 1) << "whoever sleeps is woken";
    const Result<RecvSlot> received = end->Poll();
    ASSERT_TRUE(received.ok()) << received.status().ToString();
    end->Release(*received);
  };
  sleeps_after(100'000);
  clock.now_ns += 100'000;  // twice as long in all: polling may pay the next time
  exchange();
  sleeps_after(100'000);
  clock.now_ns += 100'001;
  exchange();
  sleeps_after(50'000);
  clock.now_ns += 1'000'000;
  exchange();
  sleeps_after(25'000);
  exchange();
  sleeps_after(100'000);
}

int FreeHugePages() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("HugePages_Free:")) return std::stoi(line.substr(line.find(':') + 1));
  }
  return 0;
}

TEST_F(Verbs, RingsLieOnHugePagesWhereThereAreSome) {
  EndpointOptions options = SmallOptions();
  options.lanes[1] = {1 << 20, 2, 2};  // a little more than two huge pages an end
  const int before = FreeHugePages();
  if (before < 6) GTEST_SKIP() << before << " huge pages are free here (sysctl vm.nr_hugepages)";
  const size_t bytes = EndpointMemoryBytes(options);
  const auto a = MakeEnd(options, AllocatePageableSlots(bytes)), b = MakeEnd(options, AllocatePageableSlots(bytes));
  EXPECT_EQ(FreeHugePages(), before - 6) << "registered, all are there";
  ASSERT_TRUE(a->Connect(b->hello(), 0, 0).ok());
  ASSERT_TRUE(b->Connect(a->hello(), 0, 0).ok());
  const size_t payload = options.lanes[1].slot_bytes - sizeof(MessageHeader);
  const SendSlot slot = Prepare(*a, Lane::kBulk, payload);
  std::fill_n(slot.payload(), payload, std::byte{7});
  ASSERT_TRUE(a->Post(slot).ok());
  const Result<RecvSlot> received = Receive(*b, a.get());
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(std::count(received->payload(), received->payload() + payload, std::byte{7}),
            static_cast<int64_t>(payload));
}

int Resources(const char* kind) {
  const std::string command = std::string("rdma resource show ") + kind + " 2>/dev/null";
  FILE* out = popen(command.c_str(), "r");
  int lines = 0;
  for (int c = std::getc(out); c != EOF; c = std::getc(out)) lines += c == '\n' ? 1 : 0;
  pclose(out);
  return lines;
}

TEST_F(Verbs, NothingIsLeftAfter200Reconnects) {
  const std::shared_ptr<const VerbsDevice> held = Device();
  const auto count = [] { return std::array{Resources("qp"), Resources("cq"), Resources("mr"), Resources("pd")}; };
  const auto before = count();
  if (before[3] == 0) GTEST_SKIP() << "the tool rdma does not show this device's resources";
  for (int i = 0; i < 200; ++i) {
    Ends ends{MakeEnd(SmallOptions(), Memory(SmallOptions())), MakeEnd(SmallOptions(), Memory(SmallOptions()))};
    ASSERT_TRUE(ends.a->Connect(ends.b->hello(), 0, 0).ok());
    ASSERT_TRUE(ends.b->Connect(ends.a->hello(), 0, 0).ok());
    ASSERT_TRUE(ends.a->Post(Prepare(*ends.a, Lane::kDecode, 100)).ok());
    const Result<RecvSlot> received = Receive(*ends.b);
    ASSERT_TRUE(received.ok()) << received.status().ToString();
    if (i == 0) {
      EXPECT_GE(count()[0], before[0] + 4) << "they are counted";
    }
    // Either end goes first, with and without a message that nobody read.
    if (i % 2 == 0) ends.b.reset();
  }
  EXPECT_EQ(count(), before);
}

TEST_F(Verbs, WhatCannotBeOpenedIsSaidByName) {
  const auto message = [](VerbsOptions options) { return VerbsDevice::Open(options).status().message(); };
  EXPECT_THAT(message({.device = "mlx9_9"}), HasSubstr("no RDMA device is called \"mlx9_9\"; this host has "));
  EXPECT_THAT(message({.port = 9}), HasSubstr("has no port 9; it has 1"));
  EXPECT_THAT(message({.gid_index = 200}), HasSubstr("has no GID of index 200; it has 0 ("));
}

// Root may lock all it likes: another user tries, in a process of its own.
[[noreturn]] void RegisterAsAnotherUser() {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = 65536;
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(3);
  EndpointOptions options = SmallOptions();
  options.lanes[1].slot_bytes = 1 << 20;
  const Result<std::shared_ptr<const VerbsDevice>> device = VerbsDevice::Open(VerbsOptions());
  const Status status =
      device.ok() ? VerbsEndpoint::Create(options, *device, Memory(options)).status() : device.status();
  std::fprintf(stderr, "%s\n", status.message().c_str());
  _exit(status.code() == StatusCode::kResourceExhausted ? 0 : 4);
}

TEST_F(Verbs, TooLittleLockedMemoryIsSaidWithTheLimit) {
  EXPECT_EXIT(RegisterAsAnotherUser(), testing::ExitedWithCode(0),
              "RLIMIT_MEMLOCK allows 65536 bytes of locked memory.*ulimit -l unlimited");
}

}  // namespace
}  // namespace fastdecode
