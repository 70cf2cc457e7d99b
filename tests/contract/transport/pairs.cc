// Both ends of every pair in one process.
#include "tests/contract/transport/endpoint_pair.h"

namespace fastdecode {

std::vector<TransportFactory> Transports() {
  return {TcpFactory(), ShmFactory(), VerbsFactory(), VerbsSpinningFactory()};
}

}  // namespace fastdecode
