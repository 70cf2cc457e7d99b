// Shared memory: what is mapped, what is believed of a peer's words, and when it sleeps.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/memfd.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdio>

#include "common/transport/shm/shm_endpoint.h"
#include "common/transport/shm/unix_socket.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns; }
  int64_t now_ns = 1;
};

EndpointOptions Options() {
  EndpointOptions options;
  options.lanes = {LaneOptions{4096, 3, 3}, LaneOptions{8192, 2, 2}};
  options.incarnation = 5;
  options.peer = "peer X";
  return options;
}

class Shm : public testing::Test {
 protected:
  void Connect(int spin_us = 0) {
    layout_ = MakeShmLayout(Options(), Options());
    ShmMemory a = ShmMemory::Create(layout_.bytes).value();
    memory_ = ShmMemory::Adopt(Fd(dup(a.descriptor())), layout_.bytes).value();
    ShmMemory b = ShmMemory::Adopt(Fd(dup(a.descriptor())), layout_.bytes).value();
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    a_ = ShmEndpoint::Create(Options(), layout_, ShmSide::kDialer, std::move(a), Fd(sockets[0]), spin_us, clock_);
    b_ = ShmEndpoint::Create(Options(), layout_, ShmSide::kAccepter, std::move(b), Fd(sockets[1]), spin_us, clock_);
  }

  // What b would write, were it another program.
  PostedWord* posted_by_b() {
    return reinterpret_cast<PostedWord*>(memory_.data() + layout_.lanes[1][0].posted_offset);
  }
  ReturnedWord* returned_by_b() {
    return reinterpret_cast<ReturnedWord*>(memory_.data() + layout_.lanes[0][0].returned_offset);
  }
  MessageHeader* slot_of_b(size_t slot) {
    return reinterpret_cast<MessageHeader*>(memory_.data() + layout_.lanes[1][0].slots_offset + 4096 * slot);
  }
  static MessageHeader ValidHeader(uint32_t payload_bytes) {
    MessageHeader header;
    header.type = static_cast<uint16_t>(MessageType::kORows);
    header.incarnation = 5;
    header.payload_bytes = payload_bytes;
    return header;
  }
  static void Send(Endpoint& endpoint) {
    SendSlot slot = endpoint.Acquire(Lane::kDecode).value();
    *slot.header() = ValidHeader(100);
    ASSERT_TRUE(endpoint.Post(slot).ok());
  }

  FakeClock clock_;
  ShmLayout layout_;
  ShmMemory memory_;
  std::unique_ptr<ShmEndpoint> a_, b_;
};

TEST_F(Shm, OnlySealedMemoryOfTheRightSizeIsMapped) {
  ShmMemory memory = ShmMemory::Create(8192).value();
  EXPECT_THAT(ShmMemory::Adopt(Fd(dup(memory.descriptor())), 4096).status().message(),
              HasSubstr("8192 bytes, expected 4096"));
  EXPECT_EQ(ftruncate(memory.descriptor(), 4096), -1) << "its size cannot change any more";
  EXPECT_EQ(ftruncate(memory.descriptor(), 16384), -1);
  Fd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(ShmMemory::Adopt(std::move(unsealed), 8192).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ShmMemory::Adopt(Fd(open("/dev/null", O_RDWR)), 8192).status().code(), StatusCode::kDataLoss);
}

// As a container's seccomp profile may: memfd_create is not permitted, in a process of its own.
[[noreturn]] void CreateWithoutMemfd() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(3);
  const Status status = ShmMemory::Create(4096).status();
  std::fprintf(stderr, "%s\n", status.message().c_str());
  _exit(status.code() == StatusCode::kResourceExhausted ? 0 : 4);
}

TEST_F(Shm, ARefusedMemfdIsSaidWithWhatToDo) {
  EXPECT_EXIT(CreateWithoutMemfd(), testing::ExitedWithCode(0),
              "^this host gives no anonymous shared memory \\(memfd_create\\): .*; .*seccomp profile.*\n$");
}

TEST_F(Shm, ADescriptorThatThisProcessHasNoRoomForIsSaid) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
  const Fd from(sockets[0]), to(sockets[1]);
  const ShmMemory memory = ShmMemory::Create(4096).value();
  uint64_t bytes = 7;
  ASSERT_TRUE(SendDescriptor(from.get(), &bytes, sizeof(bytes), memory.descriptor()).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = ReceiveDescriptor(to.get(), &bytes, sizeof(bytes)).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("ulimit -n"));
}

TEST_F(Shm, AbsurdPostsAreRefused) {
  struct Case {
    uint64_t word;
    const char* reason;
  };
  const Case cases[] = {
      {PackPosted(3, 64, 1), "posts slot 3, there are 3"},
      {PackPosted(65535, 64, 1), "posts slot 65535"},
      {PackPosted(0, 4097, 1), "posts 4097 bytes, a slot holds 4096"},
      {PackPosted(0, 0xffffffff, 1), "posts 4294967295 bytes"},
      {PackPosted(0, 63, 1), "63 of at least 64 bytes"},
      {PackPosted(0, 64, 1), "64 of 104 bytes came"},
  };
  for (const Case& c : cases) {
    Connect();
    *slot_of_b(0) = ValidHeader(40);
    posted_by_b()[0].store(c.word);
    const Status status = a_->Poll().status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << c.reason;
    EXPECT_THAT(status.message(), HasSubstr(c.reason));
    EXPECT_THAT(status.message(), HasSubstr("peer X"));
  }
}

TEST_F(Shm, ASlotThatWeHoldCannotBePostedAgain) {
  Connect();
  *slot_of_b(1) = ValidHeader(0);
  posted_by_b()[0].store(PackPosted(1, 64, 1));
  posted_by_b()[1].store(PackPosted(1, 64, 1));
  ASSERT_TRUE(a_->Poll().ok());
  EXPECT_THAT(a_->Poll().status().message(), HasSubstr("posts slot 1 again"));
}

TEST_F(Shm, AHeaderThatChangesAfterItWasCheckedChangesNothing) {
  Connect();
  *slot_of_b(0) = ValidHeader(8);
  posted_by_b()[0].store(PackPosted(0, 72, 1));
  RecvSlot slot = a_->Poll().value();
  slot_of_b(0)->payload_bytes = 0xffffffff;
  EXPECT_EQ(slot.header().payload_bytes, 8U);
  EXPECT_EQ(slot.bytes.size(), 72U);
}

TEST_F(Shm, CreditForWhatWasNotSentIsRefused) {
  for (uint32_t slot : {0U, 2U, 3U, 65535U}) {
    Connect();
    if (slot == 2) Send(*a_);  // from slot 0: 2 is still ours
    returned_by_b()[0].store(PackReturned(slot, 1));
    const Status status = a_->Acquire(Lane::kDecode).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << slot;
    EXPECT_THAT(status.message(), HasSubstr("returns slot " + std::to_string(slot)));
  }
}

TEST_F(Shm, RandomWordsAreRefusedOrNothing) {
  for (uint32_t seed = 1; seed < 3000; ++seed) {
    Connect();
    *slot_of_b(0) = ValidHeader(seed % 5000);
    posted_by_b()[0].store((uint64_t{seed} * 0x9e3779b97f4a7c15ULL & ~uint64_t{0xffff}) | 1);
    returned_by_b()[0].store((seed * 0x9e3779b9U & ~0xffffU) | 1);
    const StatusCode polled = a_->Poll().status().code();
    EXPECT_TRUE(polled == StatusCode::kWouldBlock || polled == StatusCode::kDataLoss);
    (void)a_->Acquire(Lane::kDecode);
  }
}

TEST_F(Shm, AwakeItCostsNoSystemCall) {
  Connect(50);
  for (int i = 0; i < 1000; ++i) {
    for (auto [from, to] : {std::pair{a_.get(), b_.get()}, std::pair{b_.get(), a_.get()}}) {
      Send(*from);
      EXPECT_FALSE(to->PrepareWait());
      Result<RecvSlot> slot = to->Poll();
      ASSERT_TRUE(slot.ok());
      to->Release(*slot);
    }
  }
  EXPECT_EQ(a_->system_calls() + b_->system_calls(), 0U);
}

TEST_F(Shm, ItSleepsWhenItsTimeIsUpAndIsWokenOnce) {
  Connect(50);
  ASSERT_EQ(b_->Poll().status().code(), StatusCode::kWouldBlock);
  EXPECT_FALSE(b_->PrepareWait()) << "it polls for 50 us first";
  clock_.now_ns += 49'999;
  EXPECT_FALSE(b_->PrepareWait());
  clock_.now_ns += 1;
  EXPECT_TRUE(b_->PrepareWait());
  Send(*a_);
  Send(*a_);
  EXPECT_EQ(a_->system_calls(), 1U);
  pollfd fd{b_->wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 5000), 1);
  ASSERT_TRUE(b_->Poll().ok());
  EXPECT_EQ(poll(&fd, 1, 0), 0) << "the wake-up is used up";
}

TEST_F(Shm, APeerThatWakesWithoutEndStopsNobody) {
  Connect();
  ASSERT_TRUE(a_->PrepareWait());
  const std::vector<char> bytes(1 << 16);
  const auto wake = [&] { return send(b_->wait_fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); };
  ASSERT_GT(wake(), 0);
  const uint64_t before = a_->system_calls();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(a_->Poll().status().code(), StatusCode::kWouldBlock);
    (void)a_->PrepareWait();
  }
  EXPECT_LE(a_->system_calls() - before, 100U) << "it reads as long as there is something";
}

TEST_F(Shm, AStarvedSenderIsWokenByCredit) {
  Connect();
  for (int i = 0; i < 3; ++i) Send(*a_);
  ASSERT_EQ(a_->Acquire(Lane::kDecode).status().code(), StatusCode::kWouldBlock);
  ASSERT_TRUE(a_->PrepareWait());
  RecvSlot slot = b_->Poll().value();
  pollfd fd{a_->wait_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  b_->Release(slot);
  EXPECT_EQ(poll(&fd, 1, 5000), 1);
  EXPECT_EQ(a_->Poll().status().code(), StatusCode::kWouldBlock);
  EXPECT_TRUE(a_->Acquire(Lane::kDecode).ok());
}

TEST_F(Shm, RingsGoRoundForEver) {
  Connect();
  for (int i = 0; i < 300'000; ++i) {  // more than 65536 laps of 3
    Send(*a_);
    Result<RecvSlot> slot = b_->Poll();
    ASSERT_TRUE(slot.ok()) << i;
    b_->Release(*slot);
  }
  EXPECT_EQ(b_->stats().received_messages, 300'000U);
}

}  // namespace
}  // namespace fastdecode
