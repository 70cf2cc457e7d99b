// The KV pool's memory: one mapping for the life of the process, reused by every session.
//
// Huge pages where there are any: explicit ones (MAP_HUGETLB, of 1 GiB or 2 MiB), else
// transparent ones (madvise), else normal pages; what really came is looked up after the
// pages are touched and logged. A 2 MiB page saves the page walk that every 4 KiB of a
// context costs otherwise.
//
// On a machine with several NUMA nodes the pool has an equal part on each, in the order
// of the topology's nodes.
//
// Thread rule: the bytes are shared, the object is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/status.h"
#include "rworker/cpu_topology.h"

namespace fastdecode::rworker {

enum class PageKind {
  kGigantic,         // reserved by the administrator, 1 GiB
  kExplicitHuge,     // reserved by the administrator, 2 MiB
  kTransparentHuge,  // the kernel gives 2 MiB pages where it has them
  kNormal,
};

struct PoolOptions {
  int64_t bytes = 0;
  // Threads that touch every page, so that no page fault waits in the data path; 0
  // leaves the pages to the first use (tests, sparse pools).
  int prefault_threads = 0;
  CpuTopology topology;        // no nodes: one part, bound to no node
  bool strict_nodes = false;   // memory of the parts' nodes or none; else of others where theirs are full
  std::function<bool()> stop;  // asked while the pages are touched; true gives up. May be empty
};

class PoolMemory {
 public:
  // Maps `bytes`, rounded down to whole huge pages a part where possible.
  // kResourceExhausted, with the numbers and the limit that they meet, when the host, the
  // cgroup or a node has too little; kCancelled when `stop` said so.
  static Result<PoolMemory> Map(const PoolOptions& options);
  static Result<PoolMemory> Map(int64_t bytes, int prefault_threads);

  PoolMemory() = default;
  PoolMemory(PoolMemory&& other) noexcept;
  PoolMemory& operator=(PoolMemory&& other) noexcept;
  ~PoolMemory();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int num_parts() const { return num_parts_; }
  int64_t part_bytes() const { return bytes_ / num_parts_; }
  PageKind page_kind() const { return page_kind_; }
  // Of the pages touched, the share in huge ones; below 0: not touched, or not to be told.
  double huge_share() const { return huge_share_; }
  // "transparent huge pages, 98 % of the pool", "explicit 2 MiB huge pages".
  std::string DescribePages() const;
  // What to do about too few of them; empty: there are enough.
  std::string PageHint() const;

 private:
  Status MapKind(PageKind kind, const PoolOptions& options);
  Status BindParts(const PoolOptions& options) const;
  Status TouchParts(const PoolOptions& options) const;
  void LogResult(const PoolOptions& options) const;

  std::byte* mapping_ = nullptr;
  int64_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;  // the mapping's first huge page
  int64_t bytes_ = 0;
  int num_parts_ = 1;
  PageKind page_kind_ = PageKind::kNormal;
  double huge_share_ = -1;
};

// "explicit 2 MiB huge pages", "transparent huge pages", "normal pages".
const char* PageKindName(PageKind kind);

}  // namespace fastdecode::rworker
