#include "rworker/host_limits.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

namespace fastdecode::rworker {
namespace {

// Calls visit with every cgroup v2 folder of this process, from its own up to the root:
// a limit of any of them holds.
void ForEachCgroup(const std::function<void(const std::string& folder)>& visit) {
  std::ifstream file("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  while (true) {
    visit("/sys/fs/cgroup" + path);
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
  }
}

// The CPUs that a cgroup's quota is worth; very many without one. cpu.max: "max 100000" or "200000 100000".
int QuotaCpus() {
  double cpus = std::numeric_limits<int>::max();
  ForEachCgroup([&](const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    double quota = 0;
    double period = 0;
    if (file >> quota >> period && period > 0) cpus = std::min(cpus, quota / period);
  });
  return std::max(1, static_cast<int>(cpus + 0.5));
}

}  // namespace

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  for (int size = 1024; size <= 1 << 20; size *= 2) {  // the call fails while the mask is smaller than the kernel's
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(size));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; ok && cpu < size; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (ok) break;
  }
  return cpus;
}

int AllowedThreads() { return std::max(1, std::min(static_cast<int>(AllowedCpus().size()), QuotaCpus())); }

int64_t AvailableMemoryBytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:")) available = std::atoll(line.c_str() + 13) * 1024;
  }
  ForEachCgroup([&](const std::string& folder) {
    int64_t limit = 0;
    int64_t used = 0;
    if (std::ifstream(folder + "/memory.max") >> limit && std::ifstream(folder + "/memory.current") >> used) {
      available = std::min(available, std::max<int64_t>(0, limit - used));
    }
  });
  return available;
}

}  // namespace fastdecode::rworker
