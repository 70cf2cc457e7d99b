#include "common/base/huge_pages.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "common/base/logging.h"

namespace fastdecode {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

size_t WholePages(size_t bytes) {
  const size_t page = bytes >= kHugePage ? kHugePage : kPage;
  return (bytes + page - 1) / page * page;
}

Status MapOnHugePagesIfFree(size_t bytes, const std::function<Status(bool huge)>& map) {
  if (bytes >= kHugePage) {
    if (map(true).ok()) return OkStatus();
    static std::atomic<bool> said{false};
    LOG_IF(INFO, !said.exchange(true)) << "buffers of " << (bytes >> 20)
                                       << " MiB lie on small pages: no huge page is free (sysctl vm.nr_hugepages)";
  }
  return map(false);
}

std::shared_ptr<std::byte[]> MapPrivateMemory(size_t bytes, bool now) {
  bytes = WholePages(std::max<size_t>(bytes, 1));
  void* memory = nullptr;
  const Status status = MapOnHugePagesIfFree(bytes, [&](bool huge) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (huge ? MAP_HUGETLB | MAP_HUGE_2MB : 0);
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return memory == MAP_FAILED ? Status(StatusCode::kResourceExhausted, "no memory") : OkStatus();
  });
  if (!status.ok()) return nullptr;
  (void)madvise(memory, bytes, MADV_HUGEPAGE);  // where the host has no reserved ones
  for (size_t at = 0; now && at < bytes; at += kPage) static_cast<volatile char*>(memory)[at] = 0;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* pointer) { munmap(pointer, bytes); }};
}

}  // namespace fastdecode
