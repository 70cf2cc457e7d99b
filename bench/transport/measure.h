// The same work for every kind of transport, through the Endpoint contract alone, and the
// kind's bare loop beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/transport/kind.h"

namespace fastdecode::bench {

// What near asks far to do.
enum class What : uint8_t { kOpen, kEcho, kDrain, kBareEcho, kBareDrain, kClose };

// Of all runs of one sort.
struct Tally {
  double messages = 0;
  double post_send = 0, writes = 0, post_recv = 0, notify = 0;  // of both ends
  double allocations = 0;                                       // of near's process, in the later three quarters
};

// near's end: connected once, measured many times.
class Rig {
 public:
  Rig(const std::vector<std::unique_ptr<Kind>>& kinds, size_t kind, const Work& work, const Channel& channel);
  ~Rig();  // far's goes, too

  // Each round trip's ns; with several peers all are asked first and then awaited.
  std::vector<int64_t> RoundTrips(int count);
  std::vector<int64_t> BareRoundTrips(int count);
  // ns from the first message to the last one's receipt by far.
  int64_t Stream(int count);
  int64_t BareStream(int count);

  const Tally& ours() const { return ours_; }
  const Tally& bare() const { return bare_; }

 private:
  void Measure(What what, int count, Tally* tally, const std::function<void()>& part);

  const Kind& kind_;
  const Work work_;
  const Channel& channel_;
  std::vector<std::byte> source_;
  std::vector<std::unique_ptr<Endpoint>> ends_;
  std::unique_ptr<Bare> bare_end_;
  Tally ours_, bare_;
};

// far: does its part of whatever near's rigs do, until near is done.
void ServeFar(const std::vector<std::unique_ptr<Kind>>& kinds, const Channel& channel);

// Runs on a CPU of its own, where there are two: near on the first, far on the second.
void PinNear();
void PinFar();
bool TwoCpus();

}  // namespace fastdecode::bench
