// What every transport promises (common/transport/transport.h), run over each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/contract/transport/endpoint_pair.h"
#include "tests/support/count_allocations.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr int64_t kPatienceMs = 20'000;

EndpointOptions SmallOptions() {
  EndpointOptions options;
  options.lanes[0] = {4096, 3, 3};
  options.lanes[1] = {1 << 16, 4, 2};
  options.incarnation = 77;
  options.peer = "peer X";
  return options;
}

class TransportContract : public testing::TestWithParam<TransportFactory> {
 protected:
  void SetUp() override {
    if (GetParam().name.starts_with("verbs") && !HasVerbs()) {
      GTEST_SKIP() << "no RDMA device here; tests/rdma runs this in one";
    }
  }

  void Connect(const EndpointOptions& options = SmallOptions()) { std::tie(a_, b_) = GetParam().connect(options); }

  // Sends one message whose payload follows from `step`.
  static bool TrySend(Endpoint& endpoint, Lane lane, uint64_t step, size_t payload_bytes) {
    Result<SendSlot> slot = endpoint.Acquire(lane);
    if (!slot.ok()) {
      EXPECT_EQ(slot.status().code(), StatusCode::kWouldBlock) << slot.status().ToString();
      return false;
    }
    EXPECT_EQ(slot->bytes.size(), endpoint.options().lanes[static_cast<size_t>(lane)].slot_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot->bytes.data()) % 64, 0U);
    *slot->header() = MessageHeader();
    slot->header()->type =
        static_cast<uint16_t>(lane == Lane::kDecode ? MessageType::kQkvRows : MessageType::kKvAppend);
    slot->header()->step = step;
    slot->header()->payload_bytes = static_cast<uint32_t>(payload_bytes);
    for (size_t i = 0; i < payload_bytes; ++i) slot->payload()[i] = ByteOf(step, i);
    Status status = endpoint.Post(*slot);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return status.ok();
  }

  static std::byte ByteOf(uint64_t step, size_t i) { return static_cast<std::byte>(step * 131 + i * 7 + (i >> 8)); }

  static void ExpectMessage(const RecvSlot& slot, uint64_t step, size_t payload_bytes) {
    ASSERT_EQ(slot.header().step, step);
    ASSERT_EQ(slot.header().payload_bytes, payload_bytes);
    ASSERT_EQ(slot.bytes.size(), sizeof(MessageHeader) + payload_bytes);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(slot.bytes.data()) % 64, 0U);
    ASSERT_GT(slot.arrived_ns, 0);
    for (size_t i = 0; i < payload_bytes; ++i) ASSERT_EQ(slot.payload()[i], ByteOf(step, i)) << "byte " << i;
  }

  // Sleeps as an owner would, while the sender goes on, until there is a message or an error.
  static Result<RecvSlot> Receive(Endpoint& endpoint, Endpoint* sender = nullptr) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    while (std::chrono::steady_clock::now() < deadline) {
      Result<RecvSlot> slot = endpoint.Poll();
      if (slot.ok() || slot.status().code() != StatusCode::kWouldBlock) return slot;
      if (sender != nullptr) {
        EXPECT_EQ(sender->Poll().status().code(), StatusCode::kWouldBlock);
      }
      if (!endpoint.PrepareWait()) continue;
      pollfd fd{endpoint.wait_fd(), POLLIN, 0};
      poll(&fd, 1, sender != nullptr ? 1 : 100);
    }
    return Status(StatusCode::kDeadlineExceeded, "nothing came");
  }

  // Sleeps as an owner would, while the sender goes on, until wait_fd is readable.
  static bool WaitsUntilReadable(Endpoint& endpoint, Endpoint* sender = nullptr) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    while (std::chrono::steady_clock::now() < deadline) {
      if (sender != nullptr) (void)sender->Poll();
      if (!endpoint.PrepareWait()) return true;
      pollfd fd{endpoint.wait_fd(), POLLIN, 0};
      if (poll(&fd, 1, 10) == 1) return true;
    }
    return false;
  }

  // Nothing to do for so long that it isn't just late.
  static bool StaysQuiet(Endpoint& endpoint) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    while (std::chrono::steady_clock::now() < deadline) {
      if (!endpoint.PrepareWait()) {
        if (endpoint.Poll().status().code() != StatusCode::kWouldBlock) return false;
        continue;
      }
      pollfd fd{endpoint.wait_fd(), POLLIN, 0};
      if (poll(&fd, 1, 50) == 0) return true;
    }
    return false;
  }

  std::unique_ptr<Endpoint> a_, b_;
};

TEST_P(TransportContract, MemoryIsTheSumOfItsSlots) {
  EXPECT_EQ(EndpointMemoryBytes(SmallOptions()), 4096U * 6 + (1U << 16) * 6);
}

TEST_P(TransportContract, CarriesEmptyAndFullMessagesWithTheirHeaders) {
  Connect();
  size_t full = 4096 - sizeof(MessageHeader);
  ASSERT_TRUE(TrySend(*a_, Lane::kDecode, 1, 0));
  ASSERT_TRUE(TrySend(*a_, Lane::kDecode, 2, full));
  for (auto [step, bytes] : {std::pair<uint64_t, size_t>{1, 0}, {2, full}}) {
    Result<RecvSlot> slot = Receive(*b_, a_.get());
    ASSERT_TRUE(slot.ok()) << slot.status().ToString();
    ExpectMessage(*slot, step, bytes);
    EXPECT_EQ(slot->lane, Lane::kDecode);
    EXPECT_EQ(slot->header().magic, kWireMagic);
    EXPECT_EQ(slot->header().version, kWireVersion);
    EXPECT_EQ(slot->header().incarnation, 77U);
    b_->Release(*slot);
  }
  EXPECT_EQ(b_->Poll().status().code(), StatusCode::kWouldBlock);
  EXPECT_EQ(a_->stats().sent_messages, 2U);
  EXPECT_EQ(a_->stats().sent_bytes, 4096U + sizeof(MessageHeader));
  EXPECT_EQ(b_->stats().received_bytes, a_->stats().sent_bytes);
}

TEST_P(TransportContract, KeepsTheOrderWithinEachLaneAndReusesSlots) {
  Connect();
  std::mt19937_64 random(5);
  constexpr uint64_t kMessages = 3000;
  std::array<uint64_t, kNumLanes> sent{}, received{};
  std::array<std::vector<size_t>, kNumLanes> sizes;
  while (received[0] < kMessages || received[1] < kMessages) {
    for (size_t lane = 0; lane < kNumLanes; ++lane) {
      size_t bytes = random() % (SmallOptions().lanes[lane].slot_bytes - sizeof(MessageHeader) + 1);
      if (sent[lane] < kMessages && TrySend(*a_, static_cast<Lane>(lane), sent[lane], bytes)) {
        sizes[lane].push_back(bytes);
        ++sent[lane];
      }
    }
    Result<RecvSlot> slot = b_->Poll();
    if (slot.ok()) {
      auto lane = static_cast<size_t>(slot->lane);
      ASSERT_NO_FATAL_FAILURE(ExpectMessage(*slot, received[lane], sizes[lane][received[lane]]));
      ++received[lane];
      b_->Release(*slot);
    } else {
      ASSERT_EQ(slot.status().code(), StatusCode::kWouldBlock) << slot.status().ToString();
    }
    ASSERT_EQ(a_->Poll().status().code(), StatusCode::kWouldBlock);
  }
}

TEST_P(TransportContract, BothDirectionsAtOnceNeverLockUp) {
  Connect();
  std::array<Endpoint*, 2> ends = {a_.get(), b_.get()};
  std::array<uint64_t, 2> sent{}, received{};
  constexpr uint64_t kMessages = 500;
  size_t full = SmallOptions().lanes[1].slot_bytes - sizeof(MessageHeader);
  while (received[0] < kMessages || received[1] < kMessages) {
    for (size_t i = 0; i < 2; ++i) {
      while (sent[i] < kMessages && TrySend(*ends[i], Lane::kBulk, sent[i], full)) ++sent[i];
      Result<RecvSlot> slot = ends[i]->Poll();
      if (!slot.ok()) {
        ASSERT_EQ(slot.status().code(), StatusCode::kWouldBlock) << slot.status().ToString();
        continue;
      }
      ASSERT_EQ(slot->header().step, received[i]++);
      ends[i]->Release(*slot);
    }
  }
}

TEST_P(TransportContract, AcquireWouldBlockWhenAllSlotsAreTaken) {
  Connect();
  std::vector<SendSlot> slots;
  for (int i = 0; i < 3; ++i) slots.push_back(a_->Acquire(Lane::kDecode).value());
  EXPECT_EQ(a_->Acquire(Lane::kDecode).status().code(), StatusCode::kWouldBlock);
  EXPECT_TRUE(a_->Acquire(Lane::kBulk).ok()) << "lanes have slots of their own";
  a_->Abandon(slots[1]);
  Result<SendSlot> again = a_->Acquire(Lane::kDecode);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->index, slots[1].index);
}

TEST_P(TransportContract, AReceiverThatKeepsItsSlotsHoldsTheSenderBack) {
  Connect();
  size_t full = SmallOptions().lanes[1].slot_bytes - sizeof(MessageHeader);
  std::vector<RecvSlot> held;
  uint64_t sent = 0;
  for (int i = 0; i < 2000; ++i) {
    if (TrySend(*a_, Lane::kBulk, sent, full)) ++sent;
    (void)a_->Poll();
    Result<RecvSlot> slot = b_->Poll();
    if (slot.ok()) held.push_back(*slot);
  }
  ASSERT_EQ(held.size(), 2U) << "no more than the receive slots";
  EXPECT_FALSE(TrySend(*a_, Lane::kBulk, sent, full)) << "the sender must be out of credit";
  // The other lane is not held back.
  ASSERT_TRUE(TrySend(*a_, Lane::kDecode, 9, 100));
  Result<RecvSlot> decode = Receive(*b_, a_.get());
  ASSERT_TRUE(decode.ok());
  EXPECT_EQ(decode->lane, Lane::kDecode);
  // What it holds is still what was sent, and the rest comes once it lets go.
  for (uint64_t step = 0; step < sent; ++step) {
    RecvSlot slot;
    if (step < held.size()) {
      slot = held[step];
    } else {
      Result<RecvSlot> next = Receive(*b_, a_.get());
      ASSERT_TRUE(next.ok()) << next.status().ToString();
      slot = *next;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectMessage(slot, step, full));
    b_->Release(slot);
  }
}

TEST_P(TransportContract, WaitFdSleepsUntilThereIsSomething) {
  Connect();
  ASSERT_EQ(b_->Poll().status().code(), StatusCode::kWouldBlock);
  EXPECT_TRUE(StaysQuiet(*b_)) << "nothing was sent";
  ASSERT_TRUE(TrySend(*a_, Lane::kBulk, 1, 1000));
  pollfd fd{b_->wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 5000), 1);
  Result<RecvSlot> slot = Receive(*b_);
  ASSERT_TRUE(slot.ok());
  b_->Release(*slot);
}

TEST_P(TransportContract, WaitFdDoesNotSpinWhileNoSlotIsFree) {
  Connect();
  size_t full = SmallOptions().lanes[1].slot_bytes - sizeof(MessageHeader);
  std::vector<RecvSlot> held;
  for (int i = 0; i < 200; ++i) {
    (void)TrySend(*a_, Lane::kBulk, 0, full);
    (void)a_->Poll();
    Result<RecvSlot> slot = b_->Poll();
    if (slot.ok()) held.push_back(*slot);
  }
  ASSERT_EQ(held.size(), 2U);
  EXPECT_TRUE(StaysQuiet(*b_)) << "bytes wait, but there is nowhere to put them";
  b_->Release(held[0]);
  EXPECT_TRUE(WaitsUntilReadable(*b_, a_.get()));
}

TEST_P(TransportContract, AShoalOfSmallMessagesAfterLargerOnesWaitsForSlots) {
  Connect();
  uint64_t sent = 0, received = 0;
  std::vector<RecvSlot> held;
  std::vector<size_t> sizes;
  std::mt19937_64 random(3);
  while (received < 4000) {
    const size_t bytes = random() % 8 == 0 ? 1000 + random() % 3000 : random() % 40;
    while (sent < 4000 && TrySend(*a_, Lane::kDecode, sent, bytes)) {
      sizes.push_back(bytes);
      ++sent;
    }
    (void)a_->Poll();
    Result<RecvSlot> slot = b_->Poll();
    if (slot.ok()) {
      ASSERT_NO_FATAL_FAILURE(ExpectMessage(*slot, received, sizes[received]));
      ++received;
      held.push_back(*slot);
    } else {
      ASSERT_EQ(slot.status().code(), StatusCode::kWouldBlock) << slot.status().ToString();
      (void)b_->PrepareWait();
    }
    if (held.size() == 3 || (!held.empty() && random() % 3 == 0)) {
      b_->Release(held.back());  // in any order
      held.pop_back();
    }
  }
}

TEST_P(TransportContract, AnOwnerThatWaitsForCreditDoesNotSleepThroughIt) {
  Connect();
  size_t full = SmallOptions().lanes[1].slot_bytes - sizeof(MessageHeader);
  uint64_t sent = 0, received = 0;
  for (int round = 0; round < 500; ++round) {
    while (TrySend(*a_, Lane::kBulk, sent, full)) ++sent;  // until it would block
    Result<RecvSlot> slot = b_->Poll();
    if (slot.ok()) {
      EXPECT_EQ(slot->header().step, received++);
      b_->Release(*slot);
    }
    ASSERT_EQ(a_->Poll().status().code(), StatusCode::kWouldBlock);  // may free a slot itself
    if (!a_->PrepareWait()) continue;
    pollfd fd{a_->wait_fd(), POLLIN, 0};
    const bool woken = poll(&fd, 1, 0) == 1;
    Result<SendSlot> credit = a_->Acquire(Lane::kBulk);
    EXPECT_TRUE(woken || !credit.ok()) << "it would sleep with a slot free";
    if (credit.ok()) a_->Abandon(*credit);
  }
  EXPECT_GT(received, 100U);
}

TEST_P(TransportContract, APeerThatClosedIsAnErrorWithItsNameAndStaysOne) {
  Connect();
  ASSERT_TRUE(TrySend(*a_, Lane::kDecode, 1, 10));
  (void)a_->Poll();
  a_.reset();
  Result<RecvSlot> last = Receive(*b_);
  ASSERT_TRUE(last.ok()) << "what was sent before is still read";
  b_->Release(*last);
  Status status = Receive(*b_).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("peer X"));
  EXPECT_EQ(b_->Poll().status().ToString(), status.ToString());
  EXPECT_EQ(b_->Acquire(Lane::kBulk).status().ToString(), status.ToString());
  EXPECT_FALSE(b_->PrepareWait());
}

TEST_P(TransportContract, ThePeersLastWordsAreReadEvenIfSendingFailed) {
  Connect();
  ASSERT_TRUE(TrySend(*a_, Lane::kBulk, 1, 10));
  a_.reset();
  for (uint64_t i = 0; i < 4; ++i) (void)TrySend(*b_, Lane::kBulk, i, 1000);
  Result<RecvSlot> words = Receive(*b_);
  ASSERT_TRUE(words.ok()) << words.status().ToString();
  ExpectMessage(*words, 1, 10);
  b_->Release(*words);
  EXPECT_EQ(Receive(*b_).status().code(), StatusCode::kUnavailable);
}

MessageHeader ValidHeader(uint32_t payload_bytes) {
  MessageHeader header;
  header.type = static_cast<uint16_t>(MessageType::kKvAppend);
  header.incarnation = 77;
  header.payload_bytes = payload_bytes;
  return header;
}

std::vector<std::byte> Bytes(const MessageHeader& header, size_t payload_bytes) {
  std::vector<std::byte> bytes(sizeof(header) + payload_bytes, std::byte{7});
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

TEST_P(TransportContract, ADeadPeerAtAnyByteIsSeen) {
  std::vector<std::byte> message = Bytes(ValidHeader(40), 40);
  for (size_t cut = 0; cut <= message.size(); ++cut) {
    auto [endpoint, raw] = GetParam().connect_raw(SmallOptions());
    ASSERT_TRUE(cut == 0 || raw->Write(Lane::kBulk, std::span(message).first(cut)));
    raw.reset();
    Result<RecvSlot> slot = Receive(*endpoint);
    if (cut == message.size()) {
      ASSERT_TRUE(slot.ok());
      endpoint->Release(*slot);
      slot = Receive(*endpoint);
    }
    bool whole = cut == 0 || cut == message.size();
    EXPECT_EQ(slot.status().code(), whole ? StatusCode::kUnavailable : StatusCode::kDataLoss) << "cut at " << cut;
    if (!whole) {
      EXPECT_THAT(slot.status().message(), HasSubstr(std::to_string(cut) + " of "));
    }
  }
}

TEST_P(TransportContract, AHeaderIsCheckedBeforeItIsBelieved) {
  struct Case {
    const char* what;
    void (*spoil)(MessageHeader&);
    const char* message;
  };
  const Case cases[] = {
      {"magic", [](MessageHeader& h) { h.magic ^= 1; }, "magic"},
      {"version", [](MessageHeader& h) { h.version = 9; }, "version 9"},
      {"another life", [](MessageHeader& h) { h.incarnation = 76; }, "incarnation 76"},
      {"type 0", [](MessageHeader& h) { h.type = 0; }, "unknown message type 0"},
      {"type 6", [](MessageHeader& h) { h.type = 6; }, "unknown message type 6"},
      {"one byte too long", [](MessageHeader& h) { h.payload_bytes = (1 << 16) - 63; }, "slot holds"},
      {"huge", [](MessageHeader& h) { h.payload_bytes = 0xffffffff; }, "4294967295 bytes"},
      {"sign bit", [](MessageHeader& h) { h.payload_bytes = 0x80000000; }, "2147483648 bytes"},
  };
  for (const Case& c : cases) {
    auto [endpoint, raw] = GetParam().connect_raw(SmallOptions());
    MessageHeader header = ValidHeader(16);
    c.spoil(header);
    ASSERT_TRUE(raw->Write(Lane::kBulk, Bytes(header, 16)));
    Status status = Receive(*endpoint).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << c.what;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
    EXPECT_THAT(status.message(), HasSubstr("peer X"));
  }
}

TEST_P(TransportContract, RandomBytesAreRefusedAndNothingElseHappens) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    auto [endpoint, raw] = GetParam().connect_raw(SmallOptions());
    std::vector<std::byte> bytes(64 + random() % 4000);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    ASSERT_TRUE(raw->Write(static_cast<Lane>(seed % 2), bytes));
    EXPECT_EQ(Receive(*endpoint).status().code(), StatusCode::kDataLoss) << "seed " << seed;
  }
}

TEST_P(TransportContract, TheSteadyStateAllocatesNothing) {
  Connect();
  auto round = [this](uint64_t step) {
    for (Lane lane : {Lane::kDecode, Lane::kBulk}) {
      while (!TrySend(*a_, lane, step, 3000)) (void)a_->Poll();
      Result<RecvSlot> slot = b_->Poll();
      while (!slot.ok()) {
        ASSERT_EQ(slot.status().code(), StatusCode::kWouldBlock);
        (void)b_->PrepareWait();
        slot = b_->Poll();
      }
      b_->Release(*slot);
      (void)a_->PrepareWait();
      ASSERT_EQ(a_->Poll().status().code(), StatusCode::kWouldBlock);
    }
  };
  for (uint64_t step = 0; step < 10; ++step) round(step);
  uint64_t before = CountedAllocations();
  ASSERT_GT(before, 0U) << "they are counted";
  for (uint64_t step = 0; step < 1000; ++step) round(step);
  EXPECT_EQ(CountedAllocations() - before, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, TransportContract, testing::ValuesIn(Transports()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fastdecode
