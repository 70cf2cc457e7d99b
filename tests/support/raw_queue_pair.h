// A reliable-connected queue pair made by hand, for what stands in the place of an endpoint.
#pragma once

#include <array>
#include <cstdint>

#include "common/transport/verbs/verbs_device.h"

namespace fastdecode {

// Where the other end's queue pair is.
struct QueuePairAddress {
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;
  uint32_t pair = 0;
  uint32_t first_psn = 0;
};

inline constexpr uint32_t kRawFirstPsn = 7;

// For `requests` writes and as many receives; the peer may write, and receives may be posted.
QueuePairPtr MakeRawQueuePair(const VerbsDevice& device, ibv_pd* domain, ibv_cq* queue, uint32_t requests,
                              uint32_t inline_bytes);
QueuePairAddress AddressOf(const VerbsDevice& device, const ibv_qp& pair);
// Both can send from here on, once the peer has done the same.
void ConnectRawQueuePair(const VerbsDevice& device, ibv_qp* pair, const QueuePairAddress& peer);

}  // namespace fastdecode
