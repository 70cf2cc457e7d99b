// The same work for every kind of transport, through the Endpoint contract alone.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "bench/transport/kind.h"

namespace fastdecode::bench {

struct Work {
  size_t bytes = 64;  // of a message, header included
  int peers = 1;
  int count = 0;  // messages or round trips, of each peer
  Waiting waiting = Waiting::kSpin;
};

struct Counters {
  double allocations = 0;  // of the whole process, in the measured part
  double messages = 0;
};

// Connected once, measured many times.
class Rig {
 public:
  Rig(const Kind& kind, const Work& work);

  // Each round trip's ns; with several peers all are asked first and then awaited.
  std::vector<int64_t> RoundTrips();
  // ns from the first message to the last one's receipt by far.
  int64_t Stream();
  const Counters& counters() const { return counters_; }

 private:
  // Starts far and waits until it runs.
  std::thread StartFar(void (Rig::*work)());
  void Echo();
  void Drain();

  const Kind& kind_;
  const Work work_;
  std::vector<std::byte> source_;
  std::vector<EndpointPair> pairs_;
  Counters counters_;
};

}  // namespace fastdecode::bench
