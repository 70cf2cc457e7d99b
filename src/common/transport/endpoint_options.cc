#include "common/transport/transport.h"

namespace fastdecode {

size_t EndpointMemoryBytes(const EndpointOptions& options) {
  size_t bytes = 0;
  for (const LaneOptions& lane : options.lanes) {
    bytes += lane.slot_bytes * static_cast<size_t>(lane.send_slots + lane.recv_slots);
  }
  return bytes;
}

}  // namespace fastdecode
