// What a kind of transport gives to the benchmark: connected endpoints, and the same work
// without our code, which is the limit that it is measured against.
//
// A new kind is a file beside tcp_kind.cc, shm_kind.cc and verbs_kind.cc, and a line in AllKinds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/transport/channel.h"
#include "common/transport/transport.h"

namespace fastdecode::bench {

// near leads and measures; far is on another thread or another host.
enum class Side : uint8_t { kNear, kFar };

// How an owner waits for a message: polls without end, or sleeps on wait_fd.
enum class Waiting : uint8_t { kSpin, kSleep };

struct Work {
  size_t bytes = 64;  // of a message, header included
  int peers = 1;
  int slots = 4;  // of a lane, each way
  Waiting waiting = Waiting::kSpin;
};

// Calls of the device's driver, where they are counted.
struct Calls {
  uint64_t post_send = 0;  // doorbells
  uint64_t writes = 0;     // work requests of these
  uint64_t post_recv = 0;
  uint64_t notify = 0;
};

// One end of the same work without our code.
class Bare {
 public:
  virtual ~Bare() = default;
  // near: round trips of a message each way, in ns each.
  virtual std::vector<int64_t> RoundTrips(int count) = 0;
  virtual void Echo(int count) = 0;  // far's part
  // near: ns for `count` messages one way, with every peer.
  virtual int64_t Stream(int count) = 0;
  virtual void Drain(int count) = 0;  // far's part
};

class Kind {
 public:
  virtual ~Kind() = default;
  virtual std::string name() const = 0;
  // Ok, or why not here; two_hosts: whether the ends are on two.
  virtual Status Available(bool two_hosts) const = 0;
  // Whether its messages are read where they were written: then putting them there is part
  // of what is measured, since without it nothing would move.
  virtual bool in_place() const = 0;

  // Both ends do these at the same time.
  virtual std::unique_ptr<Endpoint> Connect(const EndpointOptions& options, Side side,
                                            const Channel& channel) const = 0;
  virtual std::unique_ptr<Bare> ConnectBare(const Work& work, Side side, const Channel& channel) const = 0;

  virtual std::string round_trip_limit(Waiting waiting) const = 0;
  virtual std::string bandwidth_limit() const = 0;
  // Whether Bare has all the peers of the work, or one.
  virtual bool bare_has_peers() const { return false; }
  // Of this thread, so far.
  virtual Calls calls() const { return {}; }
};

std::unique_ptr<Kind> MakeTcpKind();
std::unique_ptr<Kind> MakeShmKind();
std::unique_ptr<Kind> MakeVerbsKind();
std::vector<std::unique_ptr<Kind>> AllKinds();

}  // namespace fastdecode::bench
