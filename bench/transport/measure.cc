#include "bench/transport/measure.h"

#include <poll.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "tests/support/count_allocations.h"

namespace fastdecode::bench {
namespace {

using Endpoints = std::vector<Endpoint*>;

// As the process began, before any thread was pinned.
const cpu_set_t& AllowedCpus() {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    return set;
  }();
  return allowed;
}

void Pin(int which) {
  const cpu_set_t& initial = AllowedCpus();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &initial) && seen++ == which) CPU_SET(cpu, &allowed);
  }
  if (CPU_COUNT(&allowed) == 1) sched_setaffinity(0, sizeof(allowed), &allowed);
}

// Sleeps until one of the endpoints has news.
void Wait(const Endpoints& endpoints, Waiting waiting) {
  if (waiting == Waiting::kSpin) return;
  std::array<pollfd, 16> fds;
  CHECK_LE(endpoints.size(), fds.size());
  bool may_sleep = true;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    may_sleep = endpoints[i]->PrepareWait() && may_sleep;
    fds[i] = {endpoints[i]->wait_fd(), POLLIN, 0};
  }
  if (may_sleep) poll(fds.data(), endpoints.size(), -1);
}

// False: no credit.
bool TrySend(Endpoint& endpoint, size_t bytes, const std::byte* fill) {
  Result<SendSlot> slot = endpoint.Acquire(Lane::kDecode);
  if (!slot.ok()) {
    CHECK(slot.status().code() == StatusCode::kWouldBlock) << slot.status().ToString();
    return false;
  }
  MessageHeader& header = *slot->header();
  header = MessageHeader();
  header.type = static_cast<uint16_t>(MessageType::kQkvRows);
  header.payload_bytes = static_cast<uint32_t>(bytes - sizeof(MessageHeader));
  if (fill != nullptr) std::memcpy(slot->payload(), fill, header.payload_bytes);
  const Status status = endpoint.Post(*slot);
  CHECK(status.ok()) << status.ToString();
  return true;
}

bool TryReceive(Endpoint& endpoint) {
  Result<RecvSlot> slot = endpoint.Poll();
  if (slot.ok()) {
    endpoint.Release(*slot);
    return true;
  }
  CHECK(slot.status().code() == StatusCode::kWouldBlock) << slot.status().ToString();
  return false;
}

Endpoints Ends(const std::vector<EndpointPair>& pairs, bool near) {
  Endpoints ends;
  for (const EndpointPair& pair : pairs) ends.push_back(near ? pair.near.get() : pair.far.get());
  return ends;
}

}  // namespace

void PinNear() { Pin(0); }
void PinFar() { Pin(1); }

bool TwoCpus() { return CPU_COUNT(&AllowedCpus()) >= 2; }

Rig::Rig(const Kind& kind, const Work& work) : kind_(kind), work_(work), source_(work.bytes, std::byte{1}) {
  EndpointOptions options;
  const size_t slot = (work.bytes + 63) / 64 * 64;
  options.lanes = {LaneOptions{slot, kSlots, kSlots}, LaneOptions{128, 1, 1}};
  options.incarnation = 1;
  options.peer = "the other end";
  for (int i = 0; i < work.peers; ++i) pairs_.push_back(kind.Connect(options));
}

std::thread Rig::StartFar(void (Rig::*work)()) {
  std::atomic<bool> runs{false};
  std::thread far([this, work, &runs] {
    PinFar();
    runs.store(true);
    (this->*work)();
  });
  while (!runs.load()) std::this_thread::yield();
  return far;
}

// far: answers every message with one of the same size.
void Rig::Echo() {
  const Endpoints ends = Ends(pairs_, false);
  const std::byte* fill = kind_.in_place() ? source_.data() : nullptr;
  std::vector<int> owed(ends.size(), 0), left(ends.size(), work_.count);
  for (size_t open = ends.size(); open > 0;) {
    bool progress = false;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (TryReceive(*ends[i])) ++owed[i];
      if (owed[i] == 0 || !TrySend(*ends[i], work_.bytes, fill)) continue;
      progress = true;
      --owed[i];
      if (--left[i] == 0) --open;
    }
    if (!progress && open > 0) Wait(ends, work_.waiting);
  }
  // What the sockets did not take yet.
  for (const int64_t until = NowNs() + 2'000'000; NowNs() < until;) {
    for (Endpoint* end : ends) (void)end->Poll();
  }
}

std::vector<int64_t> Rig::RoundTrips() {
  std::thread far = StartFar(&Rig::Echo);
  const Endpoints ends = Ends(pairs_, true);
  const std::byte* fill = kind_.in_place() ? source_.data() : nullptr;
  std::vector<int64_t> times(static_cast<size_t>(work_.count));
  uint64_t allocations = 0;
  for (int round = 0; round < work_.count; ++round) {
    if (round == work_.count / 4) allocations = CountedAllocations();
    const int64_t begin = NowNs();
    for (Endpoint* end : ends) {
      while (!TrySend(*end, work_.bytes, fill)) CHECK(end->Poll().status().code() == StatusCode::kWouldBlock);
    }
    for (size_t came = 0; came < ends.size();) {
      bool progress = false;
      for (Endpoint* end : ends) progress = TryReceive(*end) ? (++came, true) : progress;
      if (!progress) Wait(ends, work_.waiting);
    }
    times[static_cast<size_t>(round)] = NowNs() - begin;
    if (round + 1 == work_.count) counters_.allocations += static_cast<double>(CountedAllocations() - allocations);
  }
  counters_.messages += 2.0 * work_.peers * (work_.count - work_.count / 4);
  far.join();
  return times;
}

// far: takes every message, and answers the last of each peer.
void Rig::Drain() {
  const Endpoints ends = Ends(pairs_, false);
  std::vector<int> left(ends.size(), work_.count);
  for (size_t open = ends.size(); open > 0;) {
    bool progress = false;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (!TryReceive(*ends[i])) continue;
      progress = true;
      if (--left[i] > 0) continue;
      --open;
      CHECK(TrySend(*ends[i], sizeof(MessageHeader), nullptr));
    }
    if (!progress && open > 0) Wait(ends, work_.waiting);
  }
}

int64_t Rig::Stream() {
  std::thread far = StartFar(&Rig::Drain);
  const Endpoints ends = Ends(pairs_, true);
  const std::byte* fill = kind_.in_place() ? source_.data() : nullptr;
  std::vector<int> left(ends.size(), work_.count);
  const int64_t begin = NowNs();
  for (size_t open = ends.size(); open > 0;) {
    bool progress = false;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (left[i] > 0 && TrySend(*ends[i], work_.bytes, fill)) {
        progress = true;
        --left[i];
      } else if (TryReceive(*ends[i])) {
        progress = true;
        --open;
      }
    }
    if (!progress && open > 0) Wait(ends, work_.waiting);
  }
  const int64_t time = NowNs() - begin;
  far.join();
  return time;
}

}  // namespace fastdecode::bench
