// The limits of shared memory: memcpy into it; a flag that two threads spin on, or a futex.
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "bench/transport/kind.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
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

class ShmKind final : public Kind {
 public:
  std::string name() const override { return "shm"; }
  bool in_place() const override { return true; }

  EndpointPair Connect(const EndpointOptions& options) const override {
    const ShmLayout layout = MakeShmLayout(options, options);
    ShmMemory near = ShmMemory::Create(layout.bytes).value();
    ShmMemory far = ShmMemory::Adopt(Fd(dup(near.descriptor())), layout.bytes).value();
    int sockets[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    return {ShmEndpoint::Create(options, layout, ShmSide::kDialer, std::move(near), Fd(sockets[0]), 0),
            ShmEndpoint::Create(options, layout, ShmSide::kAccepter, std::move(far), Fd(sockets[1]), 0)};
  }

  std::string round_trip_limit(Waiting waiting) const override {
    return waiting == Waiting::kSpin ? "memcpy and a flag to spin on, each way" : "memcpy and a futex, each way";
  }

  std::vector<int64_t> BareRoundTrips(size_t bytes, int count, Waiting waiting) const override {
    std::vector<std::byte> source(bytes), there(bytes), back(bytes);
    Flag go, come;
    std::thread far([&] {
      PinFar();
      std::vector<std::byte> answer(bytes);
      for (int i = 1; i <= count; ++i) {
        go.Await(static_cast<uint32_t>(i), waiting);
        std::memcpy(back.data(), answer.data(), bytes);
        come.Set(static_cast<uint32_t>(i), waiting);
      }
    });
    std::vector<int64_t> times(static_cast<size_t>(count));
    for (int i = 1; i <= count; ++i) {
      const int64_t begin = NowNs();
      std::memcpy(there.data(), source.data(), bytes);
      go.Set(static_cast<uint32_t>(i), waiting);
      come.Await(static_cast<uint32_t>(i), waiting);
      times[static_cast<size_t>(i - 1)] = NowNs() - begin;
    }
    far.join();
    return times;
  }

  std::string bandwidth_limit() const override { return "memcpy into as many slots, one thread"; }

  int64_t BareStream(size_t bytes, int count, Waiting) const override {
    std::vector<std::byte> source(bytes, std::byte{1});
    ShmMemory slots = ShmMemory::Create((kSlots * bytes + kShmHugePage) / kShmHugePage * kShmHugePage).value();
    for (size_t at = 0; at < slots.size(); at += 4096) slots.data()[at] = std::byte{1};
    const int64_t begin = NowNs();
    for (int i = 0; i < count; ++i) {
      std::memcpy(slots.data() + static_cast<size_t>(i % kSlots) * bytes, source.data(), bytes);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // each copy is made
    }
    return NowNs() - begin;
  }
};

}  // namespace

std::unique_ptr<Kind> MakeShmKind() { return std::make_unique<ShmKind>(); }

}  // namespace fastdecode::bench
