// verbs as a carrier: offer and answer are the two hellos (verbs_wire.h). The R-worker's end
// is connected when it answers; the S-worker's tries the path before it says that it is ready,
// so that hosts whose devices do not reach each other are told so, and auto can go on.
#pragma once

#include <memory>

#include "common/transport/carrier.h"

namespace fastdecode {

std::unique_ptr<Carrier> MakeVerbsCarrier(const TransportSettings& settings);

}  // namespace fastdecode
