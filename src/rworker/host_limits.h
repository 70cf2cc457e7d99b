// What this process may use of its host: CPUs by affinity mask and cgroup, memory by
// what is free and cgroup. Never the machine's totals, which a container has not got.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastdecode::rworker {

// The calling thread's affinity mask, ascending.
std::vector<int> AllowedCpus();
// Lets the calling thread, and those that it starts, run on these CPUs only. 0 or an errno.
int BindThisThread(const std::vector<int>& cpus);
// Threads worth starting: AllowedCpus, less where a cgroup's CPU quota is lower. At least 1.
int AllowedThreads();

struct AvailableMemory {
  int64_t bytes = 0;   // that this process may still take
  std::string source;  // who says so, and how to get more: for the user
};
// MemAvailable, less where a cgroup (v2) allows less; page cache that a cgroup can drop is
// available. `root` is where /proc and /sys lie (tests).
AvailableMemory FindAvailableMemory(const std::string& root = "");

}  // namespace fastdecode::rworker
