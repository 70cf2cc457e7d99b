#include "rworker/pool_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/logging.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

std::byte* MapAnonymous(int64_t bytes, int flags) {
  void* const address =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

// Makes every page of the part present.
void Prefault(std::byte* begin, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
#endif
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t i = 0; i < bytes; i += page) *const_cast<volatile std::byte*>(begin + i) = std::byte{0};
}

void PrefaultInParallel(std::byte* data, int64_t bytes, int threads) {
  const int64_t huge_pages = (bytes + kHugePage - 1) / kHugePage;
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    const int64_t begin = huge_pages * t / threads * kHugePage;
    const int64_t end = std::min(bytes, huge_pages * (t + 1) / threads * kHugePage);
    if (begin < end) workers.emplace_back([=] { Prefault(data + begin, end - begin); });
  }
  for (std::thread& worker : workers) worker.join();
}

std::string MiB(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

Result<PoolMemory> PoolMemory::Map(int64_t bytes, int prefault_threads) {
  if (bytes <= 0) return InvalidArgument("KV memory of " + std::to_string(bytes) + " bytes; expected more than 0");
  PoolMemory memory;
  if (bytes >= kHugePage) bytes = bytes / kHugePage * kHugePage;
  if (bytes >= kHugePage) memory.mapping_ = MapAnonymous(bytes, MAP_HUGETLB);
  if (memory.mapping_ != nullptr) {  // reserved for us at once, and not part of the free memory
    memory.mapped_bytes_ = bytes;
    memory.data_ = memory.mapping_;
    memory.page_kind_ = PageKind::kExplicitHuge;
  } else {
    const int64_t available = AvailableMemoryBytes();
    if (prefault_threads > 0 && bytes > available) {
      return Status(StatusCode::kResourceExhausted, "KV memory of " + MiB(bytes) + " asked for, but only " +
                                                        MiB(available) +
                                                        " are available here; lower kv_memory or free memory");
    }
    memory.mapped_bytes_ = bytes + kHugePage;  // room to align
    memory.mapping_ = MapAnonymous(memory.mapped_bytes_, MAP_NORESERVE);
    if (memory.mapping_ == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    "the system refused " + MiB(bytes) + " for the KV cache: " + strerror(errno));
    }
    const auto address = reinterpret_cast<uintptr_t>(memory.mapping_);
    memory.data_ = memory.mapping_ + (-address & (uintptr_t{kHugePage} - 1));
    const bool huge = bytes >= kHugePage && madvise(memory.data_, static_cast<size_t>(bytes), MADV_HUGEPAGE) == 0;
    memory.page_kind_ = huge ? PageKind::kTransparentHuge : PageKind::kNormal;
  }
  memory.bytes_ = bytes;
  if (prefault_threads > 0) PrefaultInParallel(memory.data_, bytes, prefault_threads);
  LOG(INFO) << "KV memory: " << MiB(bytes) << ", " << PageKindName(memory.page_kind_)
            << (prefault_threads > 0 ? ", all touched" : "");
  return memory;
}

PoolMemory::PoolMemory(PoolMemory&& other) noexcept { *this = std::move(other); }

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(page_kind_, other.page_kind_);
  return *this;
}

PoolMemory::~PoolMemory() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_bytes_));
}

const char* PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kExplicitHuge:
      return "explicit 2 MiB huge pages";
    case PageKind::kTransparentHuge:
      return "transparent huge pages";
    case PageKind::kNormal:
      return "normal pages";
  }
  return "";
}

}  // namespace fastdecode::rworker
