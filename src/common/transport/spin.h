// How long an endpoint's owner may poll before it sleeps, where nobody said so.
#pragma once

namespace fastdecode {

inline constexpr int kAutoSpin = -1;

// Microseconds: `wanted` itself, or for kAutoSpin some where this process has a CPU to spare
// beside `busy_threads` that compute, and none where spinning would take CPUs from them.
// Says in the log which.
int SpinMicroseconds(int wanted, int busy_threads);

}  // namespace fastdecode
