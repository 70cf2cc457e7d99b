// What this process may use of its host: CPUs by affinity mask and cgroup, memory by
// what is free and cgroup. Never the machine's totals, which a container has not got.
#pragma once

#include <cstdint>
#include <vector>

namespace fastdecode::rworker {

// The calling thread's affinity mask, ascending.
std::vector<int> AllowedCpus();
// Threads worth starting: AllowedCpus, less where a cgroup's CPU quota is lower. At least 1.
int AllowedThreads();
// Bytes that this process may still take: MemAvailable, less where a cgroup allows less.
int64_t AvailableMemoryBytes();

}  // namespace fastdecode::rworker
