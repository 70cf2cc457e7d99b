#include "bench/transport/measure.h"

#include <poll.h>
#include <sched.h>

#include <cstring>

#include "common/base/clock.h"
#include "tests/support/count_allocations.h"

namespace fastdecode::bench {
namespace {

using Kinds = std::vector<std::unique_ptr<Kind>>;
using Endpoints = std::vector<std::unique_ptr<Endpoint>>;

struct Order {
  What what = What::kOpen;
  int count = 0;    // of messages of each peer
  size_t kind = 0;  // of kOpen, as the work
  Work work;
};

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

// One end for each peer.
Endpoints ConnectAll(const Kind& kind, const Work& work, Side side, const Channel& channel) {
  EndpointOptions options;
  const size_t slot = (work.bytes + 63) / 64 * 64;
  options.lanes = {LaneOptions{slot, work.slots, work.slots}, LaneOptions{128, 1, 1}};
  options.incarnation = 1;
  options.peer = "the other end";
  Endpoints ends;
  for (int i = 0; i < work.peers; ++i) ends.push_back(kind.Connect(options, side, channel));
  return ends;
}

// far's end.
class FarRig {
 public:
  FarRig(const Kind& kind, const Work& work, const Channel& channel)
      : kind_(kind),
        work_(work),
        source_(work.bytes, std::byte{1}),
        ends_(ConnectAll(kind, work, Side::kFar, channel)),
        bare_(kind.ConnectBare(work, Side::kFar, channel)),
        owed_(ends_.size()),
        left_(ends_.size()) {}

  void Do(const Order& order) {
    if (order.what == What::kEcho) Echo(order.count);
    if (order.what == What::kDrain) Drain(order.count);
    if (order.what == What::kBareEcho) bare_->Echo(order.count);
    if (order.what == What::kBareDrain) bare_->Drain(order.count);
  }
  Calls calls() const { return kind_.calls(); }

 private:
  // Answers every message with one of the same size.
  void Echo(int count) {
    const std::byte* fill = kind_.in_place() ? source_.data() : nullptr;
    owed_.assign(ends_.size(), 0);
    left_.assign(ends_.size(), count);
    for (size_t open = ends_.size(); open > 0;) {
      bool progress = false;
      for (size_t i = 0; i < ends_.size(); ++i) {
        if (TryReceive(*ends_[i])) ++owed_[i];
        if (owed_[i] == 0 || !TrySend(*ends_[i], work_.bytes, fill)) continue;
        progress = true;
        --owed_[i];
        if (--left_[i] == 0) --open;
      }
      if (!progress && open > 0) Wait(ends_, work_.waiting);
    }
    // What the sockets did not take yet.
    for (const int64_t until = NowNs() + 2'000'000; NowNs() < until;) {
      for (const auto& end : ends_) (void)end->Poll();
    }
  }

  // Takes every message, and answers the last of each peer.
  void Drain(int count) {
    left_.assign(ends_.size(), count);
    for (size_t open = ends_.size(); open > 0;) {
      bool progress = false;
      for (size_t i = 0; i < ends_.size(); ++i) {
        if (!TryReceive(*ends_[i])) continue;
        progress = true;
        if (--left_[i] > 0) continue;
        --open;
        CHECK(TrySend(*ends_[i], sizeof(MessageHeader), nullptr));
      }
      if (!progress && open > 0) Wait(ends_, work_.waiting);
    }
  }

  const Kind& kind_;
  const Work work_;
  const std::vector<std::byte> source_;
  const Endpoints ends_;
  const std::unique_ptr<Bare> bare_;
  std::vector<int> owed_, left_;  // of each peer; made before near counts allocations
};

void AddCalls(Tally* tally, const Calls& before, const Calls& after) {
  tally->post_send += static_cast<double>(after.post_send - before.post_send);
  tally->writes += static_cast<double>(after.writes - before.writes);
  tally->post_recv += static_cast<double>(after.post_recv - before.post_recv);
  tally->notify += static_cast<double>(after.notify - before.notify);
}

}  // namespace

void PinNear() { Pin(0); }
void PinFar() { Pin(1); }

bool TwoCpus() { return CPU_COUNT(&AllowedCpus()) >= 2; }

void ServeFar(const Kinds& kinds, const Channel& channel) {
  std::unique_ptr<FarRig> rig;
  for (Order order; channel.TryTake(&order);) {
    if (order.what == What::kOpen) {
      rig = std::make_unique<FarRig>(*kinds.at(order.kind), order.work, channel);
    } else if (order.what == What::kClose) {
      rig.reset();
      channel.Put(char{0});
    } else {
      channel.Put(char{0});  // it begins
      const Calls before = rig->calls();
      rig->Do(order);
      channel.Put(before);
      channel.Put(rig->calls());
    }
  }
}

Rig::Rig(const Kinds& kinds, size_t kind, const Work& work, const Channel& channel)
    : kind_(*kinds.at(kind)), work_(work), channel_(channel), source_(work.bytes, std::byte{1}) {
  channel_.Put(Order{What::kOpen, 0, kind, work});
  ends_ = ConnectAll(kind_, work_, Side::kNear, channel_);
  bare_end_ = kind_.ConnectBare(work_, Side::kNear, channel_);
}

Rig::~Rig() {
  channel_.Put(Order{What::kClose, 0, 0, {}});
  (void)channel_.Take<char>();
}

// near's part of what far is asked to do.
void Rig::Measure(What what, int count, Tally* tally, const std::function<void()>& part) {
  channel_.Put(Order{what, count, 0, {}});
  (void)channel_.Take<char>();
  const Calls before = kind_.calls();
  part();
  AddCalls(tally, before, kind_.calls());
  const auto far_before = channel_.Take<Calls>();
  AddCalls(tally, far_before, channel_.Take<Calls>());
}

std::vector<int64_t> Rig::BareRoundTrips(int count) {
  std::vector<int64_t> times;
  Measure(What::kBareEcho, count, &bare_, [&] { times = bare_end_->RoundTrips(count); });
  bare_.messages += 2.0 * count * (kind_.bare_has_peers() ? work_.peers : 1);
  return times;
}

int64_t Rig::BareStream(int count) {
  int64_t time = 0;
  Measure(What::kBareDrain, count, &bare_, [&] { time = bare_end_->Stream(count); });
  bare_.messages += static_cast<double>(count) * (kind_.bare_has_peers() ? work_.peers : 1);
  return time;
}

std::vector<int64_t> Rig::RoundTrips(int count) {
  const std::byte* fill = kind_.in_place() ? source_.data() : nullptr;
  std::vector<int64_t> times(static_cast<size_t>(count));
  Measure(What::kEcho, count, &ours_, [&] {
    uint64_t allocations = 0;
    for (int round = 0; round < count; ++round) {
      if (round == count / 4) allocations = CountedAllocations();
      const int64_t begin = NowNs();
      for (const auto& end : ends_) {
        while (!TrySend(*end, work_.bytes, fill)) CHECK(end->Poll().status().code() == StatusCode::kWouldBlock);
      }
      for (size_t came = 0; came < ends_.size();) {
        bool progress = false;
        for (const auto& end : ends_) progress = TryReceive(*end) ? (++came, true) : progress;
        if (!progress) Wait(ends_, work_.waiting);
      }
      times[static_cast<size_t>(round)] = NowNs() - begin;
    }
    ours_.allocations += static_cast<double>(CountedAllocations() - allocations);
  });
  ours_.messages += 2.0 * count * work_.peers;
  return times;
}

int64_t Rig::Stream(int count) {
  const std::byte* fill = kind_.in_place() ? source_.data() : nullptr;
  std::vector<int> left(ends_.size(), count);
  int64_t time = 0;
  Measure(What::kDrain, count, &ours_, [&] {
    uint64_t allocations = 0;
    const int64_t begin = NowNs();
    for (size_t open = ends_.size(); open > 0;) {
      bool progress = false;
      for (size_t i = 0; i < ends_.size(); ++i) {
        if (left[i] > 0 && TrySend(*ends_[i], work_.bytes, fill)) {
          progress = true;
          if (--left[i] == count - count / 4) allocations = CountedAllocations();
        } else if (TryReceive(*ends_[i])) {
          progress = true;
          --open;
        }
      }
      if (!progress && open > 0) Wait(ends_, work_.waiting);
    }
    time = NowNs() - begin;
    ours_.allocations += static_cast<double>(CountedAllocations() - allocations);
  });
  ours_.messages += static_cast<double>(count) * work_.peers;
  return time;
}

}  // namespace fastdecode::bench
