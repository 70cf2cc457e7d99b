#include "rworker/page_usage.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace fastdecode::rworker {

PageUsage SumPageUsage(std::istream& smaps, uintptr_t begin, int64_t bytes) {
  PageUsage usage;
  int64_t inside = 0;  // bytes of the present mapping
  for (std::string line; std::getline(smaps, line);) {
    const size_t word_end = line.find(' ');
    if (word_end == std::string::npos) continue;
    if (line[word_end - 1] != ':') {  // "7f0000000000-7f0000200000 rw-p ...", not "Rss:  4 kB"
      char* rest = nullptr;
      const uintptr_t first = std::max<uintptr_t>(std::strtoull(line.c_str(), &rest, 16), begin);
      const uintptr_t last =
          std::min<uintptr_t>(std::strtoull(rest + 1, nullptr, 16), begin + static_cast<uintptr_t>(bytes));
      inside = first < last ? static_cast<int64_t>(last - first) : 0;
      continue;
    }
    const int64_t value = std::min<int64_t>(inside, std::atoll(line.c_str() + word_end) * 1024);
    if (line.starts_with("Rss:")) usage.resident_bytes += value;
    if (line.starts_with("AnonHugePages:")) usage.huge_bytes += value;
    if (line.starts_with("Private_Hugetlb:")) {  // which Rss leaves out
      usage.resident_bytes += value;
      usage.huge_bytes += value;
    }
  }
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
