// Endpoints under seeded faults: every message arrives intact and in its lane's order, or the
// endpoint says by name why not; and nobody waits for ever.
//
//   transport_faults_test --seeds=1000            that many of each transport, from 0
//   transport_faults_test --first=17 --seeds=1    one that failed
//
// Even seeds run both ends on one thread and replay exactly. Odd ones run them on two threads
// that sleep on their endpoints, so that a lost wake-up is found.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/transport/faulty_transport.h"
#include "tests/contract/transport/endpoint_pair.h"
#include "tests/support/seeds.h"

namespace fastdecode {
namespace {

constexpr int64_t kPatienceNs = 20'000'000'000;
Seeds g_seeds{0, 200};

std::byte ByteOf(uint64_t step, size_t i) { return static_cast<std::byte>(step * 131 + i * 7 + (i >> 8)); }

struct Scenario {
  EndpointOptions options;
  uint64_t messages = 0;  // of each lane, each way
  FaultPlan faults[2];
  bool harmless = false;  // nothing is cut or corrupted: all must arrive

  explicit Scenario(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (LaneOptions& lane : options.lanes) {
      lane.slot_bytes = 64 * (2 + random() % (random() % 4 == 0 ? 4000 : 60));
      lane.send_slots = static_cast<int>(1 + random() % 5);
      lane.recv_slots = static_cast<int>(1 + random() % 5);
    }
    options.incarnation = static_cast<uint32_t>(1 + random() % 1000);
    options.peer = "peer";
    messages = 1 + random() % 40;
    const uint64_t what = random() % 4;
    harmless = what < 2;
    for (FaultPlan& plan : faults) {
      plan.seed = random();
      plan.delay_percent = static_cast<int>(random() % 101);
      plan.max_delay_polls = static_cast<int>(random() % 50);
    }
    FaultPlan& culprit = faults[random() % 2];
    if (what == 2) culprit.cut_at_poll = static_cast<int64_t>(1 + random() % 300);
    if (what == 3) culprit.corrupt_at = static_cast<int64_t>(random() % (2 * messages));
  }
};

// One end: sends its messages as credit allows, checks what comes.
class Side {
 public:
  Side(std::unique_ptr<Endpoint> endpoint, const Scenario& scenario, uint64_t salt)
      : endpoint_(std::move(endpoint)), scenario_(scenario), random_(salt), salt_(salt) {}

  // False: nothing could be done.
  bool Step(uint64_t peer_salt) {
    bool progress = false;
    for (size_t lane = 0; lane < kNumLanes; ++lane) progress = TrySend(static_cast<Lane>(lane)) || progress;
    Result<RecvSlot> slot = endpoint_->Poll();
    if (slot.ok()) {
      Check(*slot, peer_salt);
      endpoint_->Release(*slot);
      return true;
    }
    if (slot.status().code() != StatusCode::kWouldBlock) Ended(slot.status());
    return progress;
  }

  void Sleep() {
    if (!ended() && endpoint_->PrepareWait()) {
      pollfd fd{endpoint_->wait_fd(), POLLIN, 0};
      slept_out = poll(&fd, 1, 10'000) == 0;
    }
  }

  // Sent everything and got everything.
  bool complete() const {
    return sent_[0] + sent_[1] == 2 * scenario_.messages && received_[0] + received_[1] == 2 * scenario_.messages;
  }
  bool ended() const { return !status_.ok(); }
  const Status& status() const { return status_; }
  void Close() { endpoint_.reset(); }
  bool slept_out = false;

 private:
  size_t BytesOf(Lane lane, uint64_t step, uint64_t salt) const {
    const size_t room = scenario_.options.lanes[static_cast<size_t>(lane)].slot_bytes - sizeof(MessageHeader);
    return (step * 7919 + salt) % (room + 1);
  }

  bool TrySend(Lane lane) {
    uint64_t& sent = sent_[static_cast<size_t>(lane)];
    if (ended() || sent == scenario_.messages) return false;
    Result<SendSlot> slot = endpoint_->Acquire(lane);
    if (!slot.ok()) {
      if (slot.status().code() != StatusCode::kWouldBlock) Ended(slot.status());
      return false;
    }
    *slot->header() = MessageHeader();
    slot->header()->type = static_cast<uint16_t>(MessageType::kQkvRows);
    slot->header()->step = sent;
    const size_t bytes = BytesOf(lane, sent, salt_);
    slot->header()->payload_bytes = static_cast<uint32_t>(bytes);
    for (size_t i = 0; i < bytes; ++i) slot->payload()[i] = ByteOf(sent + salt_, i);
    ++sent;
    const Status status = endpoint_->Post(*slot);
    if (!status.ok()) Ended(status);
    return true;
  }

  void Check(const RecvSlot& slot, uint64_t peer_salt) {
    uint64_t& received = received_[static_cast<size_t>(slot.lane)];
    EXPECT_EQ(slot.header().step, received);
    const size_t bytes = BytesOf(slot.lane, received, peer_salt);
    ASSERT_EQ(slot.header().payload_bytes, bytes);
    ASSERT_EQ(slot.bytes.size(), sizeof(MessageHeader) + bytes);
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) wrong += slot.payload()[i] != ByteOf(received + peer_salt, i) ? 1 : 0;
    EXPECT_EQ(wrong, 0U) << "bytes";
    ++received;
  }

  void Ended(const Status& status) {
    status_ = status;
    const StatusCode code = status.code();
    EXPECT_TRUE(code == StatusCode::kUnavailable || code == StatusCode::kDataLoss ||
                code == StatusCode::kDeadlineExceeded)
        << status.ToString();
    EXPECT_NE(status.message().find("peer"), std::string::npos) << status.ToString();
  }

  std::unique_ptr<Endpoint> endpoint_;
  const Scenario& scenario_;
  std::mt19937_64 random_;
  const uint64_t salt_;
  std::array<uint64_t, kNumLanes> sent_{}, received_{};
  Status status_;
};

struct Trial {
  Trial(const TransportFactory& transport, uint64_t seed) : scenario(seed) {
    CuttablePair pair = transport.connect_cuttable(scenario.options);
    // It holds the link open, so that without a cut nobody keeps it.
    for (FaultPlan& plan : scenario.faults) plan.cut = plan.cut_at_poll >= 0 ? pair.cut : nullptr;
    a.emplace(std::make_unique<FaultyEndpoint>(std::move(pair.a), scenario.faults[0]), scenario, 1);
    b.emplace(std::make_unique<FaultyEndpoint>(std::move(pair.b), scenario.faults[1]), scenario, 2);
  }
  // An end that failed is destroyed, as its owner would.
  static bool Finish(Side& side) {
    if (side.ended()) side.Close();
    return side.ended();
  }
  Scenario scenario;
  std::optional<Side> a, b;
};

// Whoever is complete waits for the other, which may still have to say that it failed.
bool Over(const Trial& run) {
  const bool a_done = run.a->complete() || run.a->ended(), b_done = run.b->complete() || run.b->ended();
  return a_done && b_done;
}

bool OnOneThread(Trial& run) {
  const int64_t deadline = NowNs() + kPatienceNs;
  while (!Over(run) && NowNs() < deadline) {
    if (!run.a->ended()) run.a->Step(2);
    if (!run.b->ended()) run.b->Step(1);
    Trial::Finish(*run.a);
    Trial::Finish(*run.b);
    if (run.a->ended() && !run.b->ended()) run.b->Sleep();
    if (run.b->ended() && !run.a->ended()) run.a->Sleep();
  }
  return Over(run);
}

bool OnTwoThreads(Trial& run) {
  const int64_t deadline = NowNs() + kPatienceNs;
  std::atomic<int> done{0};
  auto drive = [&](Side& side, uint64_t peer_salt) {
    bool counted = false;
    while (NowNs() < deadline && !side.ended() && done.load() < 2) {
      const bool progress = side.Step(peer_salt);
      if (!counted && side.complete()) {
        counted = true;
        ++done;
      }
      // The other may be complete at any time, and then nothing comes to wake us.
      if (!progress && !counted) side.Sleep();
      if (counted) std::this_thread::yield();
    }
    if (!counted) ++done;
    Trial::Finish(side);
  };
  std::thread other(drive, std::ref(*run.b), 1);
  drive(*run.a, 2);
  other.join();
  return Over(run);
}

class TransportFaults : public testing::TestWithParam<TransportFactory> {};

TEST_P(TransportFaults, IntactAndInOrderOrAnErrorWithAName) {
  if (GetParam().name.starts_with("verbs") && !HasVerbs()) {
    GTEST_SKIP() << "no RDMA device here; tests/rdma runs this in one";
  }
  for (uint64_t seed = g_seeds.first; seed < g_seeds.first + g_seeds.count; ++seed) {
    SCOPED_TRACE(ReplayOf(seed));
    Trial run(GetParam(), seed);
    const bool over = seed % 2 == 0 ? OnOneThread(run) : OnTwoThreads(run);
    EXPECT_TRUE(over) << "it hangs";
    EXPECT_FALSE(run.a->slept_out || run.b->slept_out) << "nobody woke it";
    if (run.scenario.harmless) {
      EXPECT_TRUE(run.a->complete() && run.b->complete())
          << run.a->status().ToString() << " / " << run.b->status().ToString();
    }
    if (HasFailure()) {
      std::fprintf(stderr, "%s: seed %llu failed\n", GetParam().name.c_str(), static_cast<unsigned long long>(seed));
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransportFaults, testing::ValuesIn(Transports()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  fastdecode::g_seeds = fastdecode::TakeSeeds(argc, argv, fastdecode::g_seeds);
  return RUN_ALL_TESTS();
}
