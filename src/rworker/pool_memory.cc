#include "rworker/pool_memory.h"

#include <errno.h>
#include <linux/mman.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/base/logging.h"
#include "rworker/host_limits.h"
#include "rworker/numa_memory.h"
#include "rworker/page_usage.h"
#include "rworker/prefault.h"

namespace fastdecode::rworker {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kGiganticPage = int64_t{1} << 30;
// Of the memory asked for, what rounding down to pages of 1 GiB may cost.
constexpr int64_t kMaxLossDivisor = 8;
// Below that share of huge pages a hint is worth a warning.
constexpr double kEnoughHuge = 0.9;
constexpr int kNodeSamples = 64;

std::string MiB(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

std::byte* MapAnonymous(int64_t bytes, int flags) {
  void* const address =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

int PartsOf(const PoolOptions& options) { return std::max(1, static_cast<int>(options.topology.nodes.size())); }

Status CheckAvailable(const PoolOptions& options) {
  const AvailableMemory available = FindAvailableMemory();
  if (options.bytes > available.bytes) {
    return {StatusCode::kResourceExhausted, "KV memory of " + MiB(options.bytes) + " asked for, but only " +
                                                MiB(available.bytes) + " are available here: " + available.source +
                                                "; lower kv_memory or free memory"};
  }
  const int64_t part = options.bytes / PartsOf(options);
  for (const NumaNode& node : options.topology.nodes) {
    if (node.available_bytes < 0 || part <= node.available_bytes) continue;
    const std::string text = "KV memory of " + MiB(part) + " is to lie on NUMA node " + std::to_string(node.id) +
                             ", which has only " + MiB(node.available_bytes) + " left; lower kv_memory";
    if (options.strict_nodes) return {StatusCode::kResourceExhausted, text + " or leave out --numa_node"};
    LOG(WARNING) << text << ", or the rest will lie on other nodes, which is slower";
  }
  return OkStatus();
}

}  // namespace

Result<PoolMemory> PoolMemory::Map(int64_t bytes, int prefault_threads) {
  PoolOptions options;
  options.bytes = bytes;
  options.prefault_threads = prefault_threads;
  return Map(options);
}

Result<PoolMemory> PoolMemory::Map(const PoolOptions& options) {
  if (options.bytes < PartsOf(options) * sysconf(_SC_PAGESIZE) && options.bytes < kHugePage && PartsOf(options) > 1) {
    return InvalidArgument("KV memory of " + std::to_string(options.bytes) + " bytes for " +
                           std::to_string(PartsOf(options)) + " NUMA nodes; expected at least a page for each");
  }
  if (options.bytes <= 0) {
    return InvalidArgument("KV memory of " + std::to_string(options.bytes) + " bytes; expected more than 0");
  }
  for (const PageKind kind : {PageKind::kGigantic, PageKind::kExplicitHuge, PageKind::kNormal}) {
    PoolMemory memory;
    const Status status = memory.MapKind(kind, options);
    if (status.ok()) {
      memory.LogResult(options);
      return memory;
    }
    if (kind == PageKind::kNormal || status.code() == StatusCode::kCancelled) return status;
    VLOG(1) << "KV memory: no " << PageKindName(kind) << ": " << status.message();
  }
  return Internal("no kind of pages");  // the last kind returns
}

Status PoolMemory::MapKind(PageKind kind, const PoolOptions& options) {
  num_parts_ = PartsOf(options);
  const int64_t page = kind == PageKind::kGigantic ? kGiganticPage : kHugePage;
  const bool explicit_huge = kind != PageKind::kNormal;
  const int64_t rounded = options.bytes / (page * num_parts_) * page * num_parts_;
  if (explicit_huge) {
    if (rounded == 0 || options.bytes - rounded > options.bytes / kMaxLossDivisor) {
      return {StatusCode::kResourceExhausted, "they do not divide " + MiB(options.bytes)};
    }
    // Reserved for us at once or refused, and not part of the free memory.
    mapping_ = MapAnonymous(rounded, MAP_HUGETLB | (kind == PageKind::kGigantic ? MAP_HUGE_1GB : MAP_HUGE_2MB));
    if (mapping_ == nullptr) return {StatusCode::kResourceExhausted, strerror(errno)};
    mapped_bytes_ = bytes_ = rounded;
    data_ = mapping_;
    page_kind_ = kind;
  } else {
    if (options.prefault_threads > 0) FD_RETURN_IF_ERROR(CheckAvailable(options));
    const int64_t small = sysconf(_SC_PAGESIZE) * num_parts_;
    bytes_ = rounded > 0 ? rounded : num_parts_ > 1 ? options.bytes / small * small : options.bytes;
    mapped_bytes_ = bytes_ + kHugePage;  // room to align
    mapping_ = MapAnonymous(mapped_bytes_, MAP_NORESERVE);
    if (mapping_ == nullptr) {
      return {StatusCode::kResourceExhausted,
              "the system refused " + MiB(bytes_) + " for the KV cache: " + strerror(errno)};
    }
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = mapping_ + (-address & (uintptr_t{kHugePage} - 1));
    const bool huge = rounded > 0 && madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE) == 0;
    page_kind_ = huge ? PageKind::kTransparentHuge : PageKind::kNormal;
  }
  FD_RETURN_IF_ERROR(BindParts(options));
  if (options.prefault_threads == 0) return OkStatus();
  FD_RETURN_IF_ERROR(TouchParts(options));
  const PageUsage usage = ReadPageUsage(data_, bytes_);
  if (explicit_huge) {
    huge_share_ = 1;
  } else if (usage.resident_bytes > 0) {
    huge_share_ = static_cast<double>(usage.huge_bytes) / static_cast<double>(usage.resident_bytes);
  }
  return OkStatus();
}

Status PoolMemory::BindParts(const PoolOptions& options) const {
  for (size_t i = 0; i < options.topology.nodes.size(); ++i) {
    const int node = options.topology.nodes[i].id;
    if (node == kAnyNode) continue;
    const int error =
        BindMemory(data_ + static_cast<int64_t>(i) * part_bytes(), part_bytes(), node, options.strict_nodes);
    if (error == 0) continue;
    const std::string text = "KV memory cannot be bound to NUMA node " + std::to_string(node) + ": " + strerror(error);
    if (options.strict_nodes) return {StatusCode::kResourceExhausted, text};
    LOG(WARNING) << text << (error == EPERM ? "; a container needs the capability SYS_NICE for that" : "");
  }
  return OkStatus();
}

Status PoolMemory::TouchParts(const PoolOptions& options) const {
  std::vector<PrefaultPart> parts;
  for (int i = 0; i < num_parts_; ++i) {
    PrefaultPart& part = parts.emplace_back(PrefaultPart{data_ + i * part_bytes(), part_bytes(), {}});
    if (options.topology.nodes.empty()) continue;
    const NumaNode& node = options.topology.nodes[static_cast<size_t>(i)];
    if (node.id != kAnyNode) part.cpus = node.cpus;
  }
  PrefaultOptions prefault;
  prefault.threads = options.prefault_threads;
  prefault.page_bytes = page_kind_ == PageKind::kGigantic ? kGiganticPage : kHugePage;
  prefault.stop = options.stop;
  return Prefault(parts, prefault);
}

void PoolMemory::LogResult(const PoolOptions& options) const {
  LOG(INFO) << "KV memory: " << MiB(bytes_) << ", " << DescribePages()
            << (options.prefault_threads > 0 ? ", all touched" : "");
  const std::string hint = PageHint();
  if (!hint.empty()) LOG(WARNING) << "KV memory: few huge pages, which makes attention slower: " << hint;
  if (options.prefault_threads == 0) return;
  for (size_t i = 0; i < options.topology.nodes.size(); ++i) {
    const int node = options.topology.nodes[i].id;
    if (node == kAnyNode) continue;
    const std::vector<int> found =
        SampleNodes(data_ + static_cast<int64_t>(i) * part_bytes(), part_bytes(), kNodeSamples);
    if (found.empty()) continue;
    const auto there = std::count(found.begin(), found.end(), node);
    const bool all = there == static_cast<int64_t>(found.size());
    LOG_AT_LEVEL(all ? google::GLOG_INFO : google::GLOG_WARNING)
        << "KV memory: " << MiB(part_bytes()) << " on NUMA node " << node << ", "
        << 100 * there / static_cast<int64_t>(found.size()) << " % of it really there";
  }
}

std::string PoolMemory::DescribePages() const {
  std::string text = PageKindName(page_kind_);
  if (page_kind_ == PageKind::kTransparentHuge && huge_share_ >= 0) {
    text += ", " + std::to_string(std::lround(std::floor(100 * huge_share_))) + " % of the pool";
  }
  return text;
}

std::string PoolMemory::PageHint() const {
  return huge_share_ < 0 || huge_share_ >= kEnoughHuge || bytes_ < kHugePage ? "" : HugePageHint(bytes_);
}

PoolMemory::PoolMemory(PoolMemory&& other) noexcept { *this = std::move(other); }

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(num_parts_, other.num_parts_);
  std::swap(page_kind_, other.page_kind_);
  std::swap(huge_share_, other.huge_share_);
  return *this;
}

PoolMemory::~PoolMemory() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_bytes_));
}

const char* PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kGigantic:
      return "explicit 1 GiB huge pages";
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
