// How fast this machine's memory is read, for profiles and for judging whether two runs
// had the same machine.
#pragma once

#include <string>

#include "common/base/status.h"

namespace fastdecode::plan {

struct ReadRate {
  double bytes_per_s = 0;  // median of a few passes
  double spread = 0;
  std::string method;
};

// `threads` threads, the best of the methods that can be tried in half of `seconds`.
Result<ReadRate> MeasureReadBandwidth(int threads, double seconds);

}  // namespace fastdecode::plan
