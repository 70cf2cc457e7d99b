// Several NUMA nodes where there is one: what the cache and the threads make of them is
// the same, only that memory is bound nowhere.
#pragma once

#include "rworker/cpu_topology.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {

// Each node with all CPUs of this process.
inline CpuTopology FakeNodes(int count) {
  CpuTopology topology;
  for (int i = 0; i < count; ++i) topology.nodes.push_back({kAnyNode, AllowedCpus(), -1});
  return topology;
}

}  // namespace fastdecode::rworker
