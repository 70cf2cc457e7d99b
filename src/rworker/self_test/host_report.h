// What the system says about a host that an R-worker is to run on, and what to change.
#pragma once

#include <string>
#include <vector>

#include "rworker/cpu_topology.h"

namespace fastdecode::rworker {

struct Finding {
  std::string name;   // "clock"
  std::string value;  // what was found
  std::string fix;    // what to do about it; empty: it is fine
};

// CPU, clock, memory, NUMA nodes and huge pages. `root` is where /proc and /sys lie (tests).
std::vector<Finding> ReportHost(const CpuTopology& topology, const std::string& root = "");

}  // namespace fastdecode::rworker
