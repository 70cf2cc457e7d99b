#include "common/transport/spin.h"

#include <sched.h>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

// Twice what a message between two processes of one host takes to go and come back.
constexpr int kSpinUs = 20;

}  // namespace

int SpinMicroseconds(int wanted, int busy_threads) {
  if (wanted != kAutoSpin) return wanted;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int cpus = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  const int spin_us = cpus > busy_threads ? kSpinUs : 0;
  LOG(INFO) << "transport: " << (spin_us > 0 ? "polls " + std::to_string(spin_us) + " us" : "does not poll")
            << " before it sleeps (" << cpus << " CPUs, " << busy_threads << " threads that compute)";
  return spin_us;
}

}  // namespace fastdecode
