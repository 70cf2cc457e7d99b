#include "rworker/numa_memory.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace fastdecode::rworker {

int BindMemory(std::byte* data, int64_t bytes, int node, bool strict) {
  constexpr int kBits = static_cast<int>(sizeof(unsigned long)) * CHAR_BIT;
  std::vector<unsigned long> mask(static_cast<size_t>(node / kBits) + 1, 0);
  mask.back() = 1UL << (node % kBits);
  // The kernel takes one bit less than it is told.
  const unsigned long bits = mask.size() * kBits + 1;
  const long failed = syscall(SYS_mbind, data, static_cast<unsigned long>(bytes), strict ? MPOL_BIND : MPOL_PREFERRED,
                              mask.data(), bits, 0U);
  return failed == 0 ? 0 : errno;
}

std::vector<int> SampleNodes(const std::byte* data, int64_t bytes, int samples) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<void*> pages;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t offset = bytes / samples * i / page * page;
    pages.push_back(const_cast<std::byte*>(data) + offset);
  }
  std::vector<int> states(pages.size(), -1);
  // Without target nodes the call moves nothing and only tells.
  const long failed = syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, states.data(), 0);
  std::vector<int> nodes;
  for (const int state : states) {
    if (failed == 0 && state >= 0) nodes.push_back(state);
  }
  return nodes;
}

}  // namespace fastdecode::rworker
