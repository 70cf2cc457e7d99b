#include "rworker/host_limits.h"

#include <errno.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <istream>
#include <limits>
#include <string>

namespace fastdecode::rworker {
namespace {

// Calls visit with every cgroup v2 folder of this process, from its own up to the root:
// a limit of any of them holds.
void ForEachCgroup(const std::string& root, const std::function<void(const std::string& folder)>& visit) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  while (true) {
    visit(root + "/sys/fs/cgroup" + path);
    const size_t slash = path.find_last_of('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
  }
}

// The CPUs that a cgroup's quota is worth; very many without one. cpu.max: "max 100000" or "200000 100000".
int QuotaCpus() {
  double cpus = std::numeric_limits<int>::max();
  ForEachCgroup("", [&](const std::string& folder) {
    std::ifstream file(folder + "/cpu.max");
    double quota = 0;
    double period = 0;
    if (file >> quota >> period && period > 0) cpus = std::min(cpus, quota / period);
  });
  return std::max(1, static_cast<int>(cpus + 0.5));
}

// The number that follows `name` at the beginning of a line; -1: there is no such line.
int64_t NumberAfter(std::istream& lines, const std::string& name) {
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::atoll(line.c_str() + name.size());
  }
  return -1;
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

int BindThisThread(const std::vector<int>& cpus) {
  const auto size = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end()) + 1);
  cpu_set_t* const set = CPU_ALLOC(size);
  const size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const int error = sched_setaffinity(0, bytes, set) == 0 ? 0 : errno;
  CPU_FREE(set);
  return error;
}

int AllowedThreads() { return std::max(1, std::min(static_cast<int>(AllowedCpus().size()), QuotaCpus())); }

AvailableMemory FindAvailableMemory(const std::string& root) {
  AvailableMemory available{std::numeric_limits<int64_t>::max(), "this host"};
  std::ifstream meminfo(root + "/proc/meminfo");
  if (const int64_t kib = NumberAfter(meminfo, "MemAvailable:"); kib >= 0) {
    available = {kib * 1024, "this host has no more free (MemAvailable)"};
  }
  ForEachCgroup(root, [&](const std::string& folder) {
    int64_t limit = 0;
    int64_t used = 0;
    if (!(std::ifstream(folder + "/memory.max") >> limit)) return;  // none, or "max"
    if (!(std::ifstream(folder + "/memory.current") >> used)) return;
    std::ifstream stat(folder + "/memory.stat");
    used -= std::max<int64_t>(0, NumberAfter(stat, "inactive_file "));
    const int64_t left = std::max<int64_t>(0, limit - std::max<int64_t>(0, used));
    if (left >= available.bytes) return;
    available = {left, "the cgroup's memory.max is " + std::to_string(limit >> 20) + " MiB, of which " +
                           std::to_string(std::max<int64_t>(0, used) >> 20) + " MiB are in use (" + folder +
                           "/memory.max; docker run --memory, systemd MemoryMax=, Slurm --mem raise it)"};
  });
  return available;
}

}  // namespace fastdecode::rworker
