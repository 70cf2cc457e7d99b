// MeasureReadBandwidth: the one tool for it, which R-workers use for their self-test too.
#include "plan/measure/read_rate.h"

#include <algorithm>

#include "common/base/clock.h"
#include "plan/fit.h"
#include "rworker/pool_memory.h"
#include "rworker/read_bandwidth.h"

namespace fastdecode::plan {

Result<ReadRate> MeasureReadBandwidth(int threads, double seconds) {
  constexpr int kPasses = 7;
  rworker::ComputePool pool(threads);
  FD_ASSIGN_OR_RETURN(const rworker::PoolMemory memory,
                      rworker::PoolMemory::Map(rworker::BytesBeyondCaches(), threads));
  rworker::ReadBandwidth read(&pool, memory.data(), memory.bytes());
  const rworker::ReadMethod method = read.FindBest(NowNs() + static_cast<int64_t>(seconds / 2 * 1e9));
  std::vector<double> rates;
  for (int i = 0; i < kPasses; ++i) rates.push_back(read.Measure(method));
  return ReadRate{Median(rates), Spread(rates), method.ToString()};
}

}  // namespace fastdecode::plan
