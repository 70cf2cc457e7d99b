#include "rworker/page_usage.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace fastdecode::rworker {

PageUsage SumPageUsage(std::istream& smaps, uintptr_t begin, int64_t bytes) {
  PageUsage usage;
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    const size_t word_end = line.find(' ');
    if (word_end == std::string::npos) continue;
    if (line[word_end - 1] != ':') {  // "7f0000000000-7f0000200000 rw-p ...", not "Rss:  4 kB"
      const uintptr_t start = std::strtoull(line.c_str(), nullptr, 16);
      inside = start >= begin && start - begin < static_cast<uintptr_t>(bytes);
      continue;
    }
    if (!inside) continue;
    const int64_t value = std::atoll(line.c_str() + word_end) * 1024;
    if (line.starts_with("Rss:")) usage.resident_bytes += value;
    if (line.starts_with("AnonHugePages:")) usage.huge_bytes += value;
    if (line.starts_with("Private_Hugetlb:")) {  // which Rss leaves out
      usage.resident_bytes += value;
      usage.huge_bytes += value;
    }
  }
  usage.resident_bytes = std::min(usage.resident_bytes, bytes);
  usage.huge_bytes = std::min(usage.huge_bytes, bytes);
  return usage;
}

PageUsage ReadPageUsage(const std::byte* data, int64_t bytes) {
  std::ifstream smaps("/proc/self/smaps");
  return SumPageUsage(smaps, reinterpret_cast<uintptr_t>(data), bytes);
}

std::string HugePageHint(int64_t bytes, const std::string& root) {
  const std::string reserve =
      "reserve explicit ones: sysctl vm.nr_hugepages=" + std::to_string((bytes + (2 << 20) - 1) >> 21);
  const std::string file = "/sys/kernel/mm/transparent_hugepage/enabled";
  std::string modes;
  if (!std::getline(std::ifstream(root + file), modes)) {
    return "this kernel has no transparent huge pages; " + reserve;
  }
  if (modes.find("[never]") != std::string::npos) {
    return file + " says never; as root: echo madvise > " + file + ", or " + reserve;
  }
  return "the free memory is fragmented; as root: echo 1 > /proc/sys/vm/compact_memory before the start, or " + reserve;
}

}  // namespace fastdecode::rworker
