// What a transport gives to the contract suite: two connected endpoints, and a way to put
// raw bytes in the place of one of them.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "common/transport/transport.h"

namespace fastdecode {

// One end without an Endpoint: writes what it likes, and can close.
class RawEnd {
 public:
  virtual ~RawEnd() = default;  // closes
  // False: the other end does not take any more.
  virtual bool Write(Lane lane, std::span<const std::byte> bytes) = 0;
};

// Two ends, and what breaks the link between them at once, as a cable or a crash might.
struct CuttablePair {
  std::unique_ptr<Endpoint> a, b;
  std::function<void()> cut;
};

struct TransportFactory {
  std::string name;
  // Two ends of one connection with the same options on both (lanes mirrored are the same).
  std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> (*connect)(const EndpointOptions& options);
  std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<RawEnd>> (*connect_raw)(const EndpointOptions& options);
  CuttablePair (*connect_cuttable)(const EndpointOptions& options);
};

inline void PrintTo(const TransportFactory& factory, std::ostream* out) { *out << factory.name; }

// Those that a suite runs over: pairs.cc, or tests/rdma/far_pairs.cc with its two ends on two hosts.
std::vector<TransportFactory> Transports();

TransportFactory TcpFactory();
TransportFactory ShmFactory();
TransportFactory VerbsFactory();
TransportFactory VerbsSpinningFactory();  // polls before it sleeps
bool HasVerbs();                          // this host has an RDMA device that works

}  // namespace fastdecode
