// Ends of verbs connections on this host's own RDMA device.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/transport/verbs/verbs_endpoint.h"

namespace fastdecode {

std::unique_ptr<VerbsEndpoint> MakeVerbsEnd(const EndpointOptions& options, int spin_us = 0);

// As the hello would come from the other end.
VerbsHello ParsedHello(std::span<const std::byte> bytes, const EndpointOptions& options);
inline VerbsHello ParsedHello(const VerbsHello& hello, const EndpointOptions& options) {
  return ParsedHello(std::as_bytes(std::span(&hello, 1)), options);
}

// What fails the queue pairs of those ends that still live: the end that is cut may outlive the other. Any thread.
class VerbsCut {
 public:
  void Add(const VerbsEndpoint* end);
  void Remove(const VerbsEndpoint* end);
  void Cut();

 private:
  std::mutex mutex_;
  std::vector<const VerbsEndpoint*> ends_;  // under mutex_
};

std::unique_ptr<Endpoint> MakeCuttable(std::unique_ptr<VerbsEndpoint> end, std::shared_ptr<VerbsCut> cut);

}  // namespace fastdecode
