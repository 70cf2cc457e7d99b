// The KV pool's memory: one mapping for the life of the process, reused by every session.
//
// Huge pages where there are any: explicit ones (MAP_HUGETLB), else transparent ones
// (madvise), else normal pages; which is logged. A 2 MiB page saves the page walk
// that every 4 KiB of a context costs otherwise.
//
// Thread rule: the bytes are shared, the object is immutable.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/status.h"

namespace fastdecode::rworker {

enum class PageKind {
  kExplicitHuge,     // reserved by the administrator, 2 MiB
  kTransparentHuge,  // the kernel gives 2 MiB pages where it has them
  kNormal,
};

class PoolMemory {
 public:
  // Maps `bytes` (rounded down to whole huge pages where possible) and touches every
  // page, with `prefault_threads` threads, so that no page fault waits in the data
  // path; 0 leaves the pages to the first use (tests, sparse pools).
  // kResourceExhausted, with the numbers, when the host or the cgroup has too little.
  static Result<PoolMemory> Map(int64_t bytes, int prefault_threads);

  PoolMemory() = default;
  PoolMemory(PoolMemory&& other) noexcept;
  PoolMemory& operator=(PoolMemory&& other) noexcept;
  ~PoolMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  PageKind page_kind() const { return page_kind_; }

 private:
  std::byte* mapping_ = nullptr;
  int64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;  // the mapping's first huge page
  int64_t bytes_ = 0;
  PageKind page_kind_ = PageKind::kNormal;
};

// "explicit 2 MiB huge pages", "transparent huge pages", "normal pages".
const char* PageKindName(PageKind kind);

}  // namespace fastdecode::rworker
