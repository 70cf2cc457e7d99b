// What starting and ending one piece of work costs a ComputePool: paid once a layer.
#pragma once

#include "rworker/compute_pool.h"

namespace fastdecode::rworker {

// A run of nothing takes no more than that where threads are pinned to CPUs of their own.
inline constexpr double kBarrierTargetUs = 5;

// Microseconds of an empty Run: the median over batches of calls.
double MeasureBarrierUs(ComputePool* pool);

}  // namespace fastdecode::rworker
