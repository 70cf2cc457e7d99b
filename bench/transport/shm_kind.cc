// The limits of shared memory: memcpy into it; a flag that two threads spin on, or a futex.
// Both ends are threads of one process, so what they tell each other are its own descriptors
// and addresses.
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "bench/transport/kind.h"
#include "common/base/clock.h"
#include "common/base/huge_pages.h"
#include "common/transport/shm/shm_endpoint.h"

namespace fastdecode::bench {
namespace {

// A word that one thread sets and another waits for.
struct alignas(64) Flag {
  std::atomic<uint32_t> value{0};

  void Set(uint32_t to, Waiting waiting) {
    value.store(to, std::memory_order_release);
    if (waiting == Waiting::kSleep) syscall(SYS_futex, &value, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  void Await(uint32_t what, Waiting waiting) {
    while (true) {
      const uint32_t seen = value.load(std::memory_order_acquire);
      if (seen == what) return;
      if (waiting == Waiting::kSleep) syscall(SYS_futex, &value, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    }
  }
};

// Where the two bare ends meet; near's.
struct Meeting {
  explicit Meeting(size_t bytes) : there(bytes), back(bytes) {}
  std::vector<std::byte> there, back;
  Flag go, come;
};

class ShmBare final : public Bare {
 public:
  ShmBare(const Work& work, std::unique_ptr<Meeting> own, Meeting* meeting)
      : work_(work), source_(work.bytes, std::byte{1}), own_(std::move(own)), meeting_(meeting) {}

  std::vector<int64_t> RoundTrips(int count) override {
    std::vector<int64_t> times(static_cast<size_t>(count));
    for (int64_t& time : times) {
      const int64_t begin = NowNs();
      std::memcpy(meeting_->there.data(), source_.data(), work_.bytes);
      meeting_->go.Set(++round_, work_.waiting);
      meeting_->come.Await(round_, work_.waiting);
      time = NowNs() - begin;
    }
    return times;
  }

  void Echo(int count) override {
    for (int i = 0; i < count; ++i) {
      meeting_->go.Await(++round_, work_.waiting);
      std::memcpy(meeting_->back.data(), source_.data(), work_.bytes);
      meeting_->come.Set(round_, work_.waiting);
    }
  }

  int64_t Stream(int count) override {
    if (slots_.size() == 0)
      slots_ =
          ShmMemory::Create(WholePages(std::max(static_cast<size_t>(work_.slots) * work_.bytes, kHugePage))).value();
    for (size_t at = 0; at < slots_.size(); at += 4096) slots_.data()[at] = std::byte{1};
    const int64_t begin = NowNs();
    for (int i = 0; i < count; ++i) {
      std::memcpy(slots_.data() + static_cast<size_t>(i % work_.slots) * work_.bytes, source_.data(), work_.bytes);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // each copy is made
    }
    return NowNs() - begin;
  }

  void Drain(int) override {}

 private:
  const Work work_;
  const std::vector<std::byte> source_;
  const std::unique_ptr<Meeting> own_;
  Meeting* const meeting_;
  uint32_t round_ = 0;
  ShmMemory slots_;
};

class ShmKind final : public Kind {
 public:
  std::string name() const override { return "shm"; }
  bool in_place() const override { return true; }
  Status Available(bool two_hosts) const override {
    return two_hosts ? InvalidArgument("shared memory is for one host") : OkStatus();
  }

  std::unique_ptr<Endpoint> Connect(const EndpointOptions& options, Side side, const Channel& channel) const override {
    const ShmLayout layout = MakeShmLayout(options, options);
    if (side == Side::kFar) {
      ShmMemory memory = ShmMemory::Adopt(Fd(channel.Take<int>()), layout.bytes).value();
      Fd socket(channel.Take<int>());
      return ShmEndpoint::Create(options, layout, ShmSide::kAccepter, std::move(memory), std::move(socket), 0);
    }
    ShmMemory memory = ShmMemory::Create(layout.bytes).value();
    int sockets[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    channel.Put(dup(memory.descriptor()));  // the other end closes it
    channel.Put(sockets[1]);
    return ShmEndpoint::Create(options, layout, ShmSide::kDialer, std::move(memory), Fd(sockets[0]), 0);
  }

  std::unique_ptr<Bare> ConnectBare(const Work& work, Side side, const Channel& channel) const override {
    if (side == Side::kFar) return std::make_unique<ShmBare>(work, nullptr, channel.Take<Meeting*>());
    auto own = std::make_unique<Meeting>(work.bytes);
    Meeting* meeting = own.get();
    channel.Put(meeting);
    return std::make_unique<ShmBare>(work, std::move(own), meeting);
  }

  std::string round_trip_limit(Waiting waiting) const override {
    return waiting == Waiting::kSpin ? "memcpy and a flag to spin on, each way" : "memcpy and a futex, each way";
  }
  std::string bandwidth_limit() const override { return "memcpy into as many slots, one thread"; }
};

}  // namespace

std::unique_ptr<Kind> MakeShmKind() { return std::make_unique<ShmKind>(); }

}  // namespace fastdecode::bench
