// tcp as a carrier: two streams to the R-worker's port, each opened by the proof of the
// session's key. Offer and answer are empty.
#pragma once

#include <memory>

#include "common/transport/carrier.h"

namespace fastdecode {

std::unique_ptr<Carrier> MakeTcpCarrier();

}  // namespace fastdecode
