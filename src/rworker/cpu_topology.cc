#include "rworker/cpu_topology.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "common/base/logging.h"

namespace fastdecode::rworker {
namespace {

std::string FirstLine(const std::string& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

bool Contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

std::string NodeFolder(const std::string& root, int id) {
  return root + "/sys/devices/system/node/node" + std::to_string(id);
}

// Free pages, and pages of files and slabs that the kernel drops when they are wanted.
int64_t AvailableOnNode(const std::string& root, int id) {
  std::ifstream meminfo(NodeFolder(root, id) + "/meminfo");
  int64_t kib = -1;
  for (std::string line; std::getline(meminfo, line);) {  // "Node 0 MemFree:  123 kB"
    std::istringstream words(line);
    std::string node, number, name;
    int64_t value = 0;
    words >> node >> number >> name >> value;
    if (name == "MemFree:" || name == "Inactive(file):" || name == "SReclaimable:")
      kib = std::max<int64_t>(kib, 0) + value;
  }
  return kib < 0 ? -1 : kib * 1024;
}

// The nodes whose memory this process may have.
std::vector<int> MemoryNodes(const std::string& root) {
  const std::string with_memory = FirstLine(root + "/sys/devices/system/node/has_memory");
  std::vector<int> nodes = ParseCpuList(with_memory);
  std::ifstream status(root + "/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const std::string name = "Mems_allowed_list:";
    if (!line.starts_with(name)) continue;
    const std::vector<int> allowed = ParseCpuList(line.substr(line.find_first_not_of(" \t", name.size())));
    std::erase_if(nodes, [&](int node) { return !Contains(allowed, node); });
  }
  return nodes;
}

// Of `candidates`, the one with the smallest distance from `node`.
int Nearest(const std::string& root, int node, const std::vector<int>& candidates) {
  std::ifstream file(NodeFolder(root, node) + "/distance");  // one number a node online
  const std::vector<int> online = ParseCpuList(FirstLine(root + "/sys/devices/system/node/online"));
  int best = candidates.front();
  int best_distance = std::numeric_limits<int>::max();
  int distance = 0;
  for (const int other : online) {
    if (!(file >> distance)) break;
    if (distance < best_distance && Contains(candidates, other)) {
      best_distance = distance;
      best = other;
    }
  }
  return best;
}

}  // namespace

int CpuTopology::num_cpus() const {
  size_t count = 0;
  for (const NumaNode& node : nodes) count += node.cpus.size();
  return static_cast<int>(count);
}

std::string CpuTopology::ToString() const {
  if (nodes.front().id == kAnyNode) return "one NUMA node, CPUs " + FormatCpuList(nodes.front().cpus);
  std::string text = "NUMA node ";
  for (const NumaNode& node : nodes) {
    if (&node != &nodes.front()) text += "; ";
    text += std::to_string(node.id) + ": CPUs " + FormatCpuList(node.cpus);
    if (node.available_bytes >= 0) text += ", " + std::to_string(node.available_bytes >> 20) + " MiB free";
  }
  return text;
}

CpuTopology ReadCpuTopology(const std::vector<int>& allowed_cpus, const std::string& root) {
  const std::vector<int> memory_nodes = MemoryNodes(root);
  if (memory_nodes.size() < 2) return FlatTopology(allowed_cpus);
  CpuTopology topology;
  const auto node_of_id = [&](int id) -> NumaNode& {
    for (NumaNode& node : topology.nodes) {
      if (node.id == id) return node;
    }
    return topology.nodes.emplace_back(NumaNode{id, {}, AvailableOnNode(root, id)});
  };
  size_t found = 0;
  for (const int id : ParseCpuList(FirstLine(root + "/sys/devices/system/node/online"))) {
    for (const int cpu : ParseCpuList(FirstLine(NodeFolder(root, id) + "/cpulist"))) {
      if (!Contains(allowed_cpus, cpu)) continue;
      ++found;
      node_of_id(Contains(memory_nodes, id) ? id : Nearest(root, id, memory_nodes)).cpus.push_back(cpu);
    }
  }
  const bool complete = found == allowed_cpus.size() && !topology.nodes.empty();
  if (!complete || topology.nodes.size() > kMaxNumaNodes) {
    LOG(WARNING) << "the NUMA nodes of this machine are not used: "
                 << (complete ? std::to_string(topology.nodes.size()) + " of them, expected at most " +
                                    std::to_string(kMaxNumaNodes)
                              : std::string("not every CPU is named by one of them"));
    return FlatTopology(allowed_cpus);
  }
  for (NumaNode& node : topology.nodes) std::sort(node.cpus.begin(), node.cpus.end());
  std::sort(topology.nodes.begin(), topology.nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return topology;
}

Result<CpuTopology> OnlyNode(const CpuTopology& topology, int id, const std::string& root) {
  for (const NumaNode& node : topology.nodes) {
    if (node.id == id) return CpuTopology{{node}};
  }
  const std::vector<int> online = ParseCpuList(FirstLine(root + "/sys/devices/system/node/online"));
  // A machine with one node: asking for it is asking for what is.
  if (topology.nodes.front().id == kAnyNode && (id == 0 || Contains(online, id)) && online.size() < 2) return topology;
  if (!Contains(online, id)) {
    return InvalidArgument("there is no NUMA node " + std::to_string(id) + " on this machine; it has " +
                           (online.empty() ? std::string("0") : FormatCpuList(online)));
  }
  return InvalidArgument(
      "NUMA node " + std::to_string(id) +
      " has no CPU or no memory that this process may use (its affinity mask or cpuset): " + topology.ToString());
}

CpuTopology FlatTopology(std::vector<int> cpus) { return {{NumaNode{kAnyNode, std::move(cpus), -1}}}; }

std::vector<ThreadPlace> PlaceThreads(const CpuTopology& topology, int threads) {
  std::vector<ThreadPlace> order;  // of all CPUs
  std::vector<size_t> used(topology.nodes.size(), 0);
  for (int i = 0; i < topology.num_cpus(); ++i) {
    // The node with the smallest part of its CPUs used, so that nodes of different sizes fill evenly.
    size_t best = 0;
    for (size_t n = 1; n < used.size(); ++n) {
      if (used[n] * topology.nodes[best].cpus.size() < used[best] * topology.nodes[n].cpus.size()) best = n;
    }
    order.push_back({static_cast<int>(best), topology.nodes[best].cpus[used[best]++]});
  }
  std::vector<ThreadPlace> places;
  for (size_t t = 0; t < static_cast<size_t>(threads); ++t) places.push_back(order[t % order.size()]);
  return places;
}

std::vector<int> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream stream(text);
  for (int first = 0; stream >> first;) {
    int last = first;
    if (stream.peek() == '-') {
      stream.ignore();
      stream >> last;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (stream.peek() == ',') stream.ignore();
  }
  return cpus;
}

std::string FormatCpuList(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace fastdecode::rworker
