// The NUMA nodes that this process may use: their CPUs and their memory.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace fastdecode::rworker {

inline constexpr int kAnyNode = -1;
// More than that (none is sold) are taken as one.
inline constexpr int kMaxNumaNodes = 16;

struct NumaNode {
  int id = kAnyNode;             // the system's number; kAnyNode: memory is not bound
  std::vector<int> cpus;         // allowed to this process, ascending
  int64_t available_bytes = -1;  // of its memory, free or easily freed; -1: not known
};

struct CpuTopology {
  std::vector<NumaNode> nodes;  // at least one, by id

  int num_cpus() const;
  std::string ToString() const;  // "NUMA node 0: CPUs 0-15, 1: CPUs 16-31" or "one NUMA node, CPUs 0-3"
};

// The nodes that have one of `allowed_cpus` and memory that this process may have. CPUs of
// a node without memory count to the nearest that has some. On a machine with one node
// memory is bound nowhere. `root` is where /proc and /sys lie (tests).
CpuTopology ReadCpuTopology(const std::vector<int>& allowed_cpus, const std::string& root = "");

// The one node of it with this id; kInvalidArgument, with what there is, when it has none.
Result<CpuTopology> OnlyNode(const CpuTopology& topology, int id, const std::string& root = "");

// One node that is bound to nothing: as if the machine had no NUMA nodes.
CpuTopology FlatTopology(std::vector<int> cpus);

// Where threads go: evenly over the nodes' CPUs, lowest CPU first, nodes taking turns;
// from the beginning again when there are more threads than CPUs.
struct ThreadPlace {
  int node = 0;  // index into nodes
  int cpu = 0;
};
std::vector<ThreadPlace> PlaceThreads(const CpuTopology& topology, int threads);

// "0-3,8" <-> {0, 1, 2, 3, 8}, the kernel's way.
std::vector<int> ParseCpuList(const std::string& text);
std::string FormatCpuList(const std::vector<int>& cpus);

}  // namespace fastdecode::rworker
