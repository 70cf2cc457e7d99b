// What a kind of transport gives to the benchmark: connected endpoints, and the same work
// without our code, which is the limit that it is measured against.
//
// A new kind is a file beside tcp_kind.cc and shm_kind.cc, and a line in AllKinds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/transport/transport.h"

namespace fastdecode::bench {

// near sends first; far lives on another thread.
struct EndpointPair {
  std::unique_ptr<Endpoint> near, far;
};

// How an owner waits for a message: polls without end, or sleeps on wait_fd.
enum class Waiting { kSpin, kSleep };

class Kind {
 public:
  virtual ~Kind() = default;
  virtual std::string name() const = 0;
  virtual EndpointPair Connect(const EndpointOptions& options) const = 0;
  // Whether its messages are read where they were written: then putting them there is part
  // of what is measured, since without it nothing would move.
  virtual bool in_place() const = 0;

  // Round trips of `bytes` each way between two threads on these CPUs, in ns each.
  virtual std::string round_trip_limit(Waiting waiting) const = 0;
  virtual std::vector<int64_t> BareRoundTrips(size_t bytes, int count, Waiting waiting) const = 0;
  // ns for `count` messages of `bytes` one way.
  virtual std::string bandwidth_limit() const = 0;
  virtual int64_t BareStream(size_t bytes, int count, Waiting waiting) const = 0;
};

std::unique_ptr<Kind> MakeTcpKind();
std::unique_ptr<Kind> MakeShmKind();
std::vector<std::unique_ptr<Kind>> AllKinds();

inline constexpr int kSlots = 4;  // of a lane, each way

// Runs on CPUs of their own, where there are two: near on the first, far on the second.
void PinNear();
void PinFar();
bool TwoCpus();

}  // namespace fastdecode::bench
