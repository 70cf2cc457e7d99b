#include <sched.h>

#include <algorithm>

#include "common/config/config.h"

namespace fastdecode {

int SWorkerThreads(const Config& config) {
  if (config.sworker.threads > 0) return config.sworker.threads;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int threads = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  threads -= config.rworkers.count * config.rworkers.threads;
  for (const RWorkerHost& host : config.rworkers.hosts) {
    if (host.ssh.empty()) threads -= host.threads;
  }
  return std::max(threads, 1);
}

}  // namespace fastdecode
