#include "common/transport/shm/shm_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/base/huge_pages.h"
#include "common/transport/tcp/socket.h"

namespace fastdecode {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr const char* kName = "fastdecode-rows";

// Growing a file beyond this limit is a signal that ends the process: asked for before.
Status CheckFileSizeLimit(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) {
    return OkStatus();
  }
  return {StatusCode::kResourceExhausted,
          "shared memory of " + std::to_string(bytes) + " bytes is above this process's file-size limit of " +
              std::to_string(limit.rlim_cur) + " bytes (RLIMIT_FSIZE); raise it: ulimit -f unlimited"};
}

Result<Fd> MakeDescriptor(size_t bytes, unsigned flags) {
  Fd descriptor(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!descriptor.valid()) {
    return Status(StatusCode::kResourceExhausted,
                  "this host gives no anonymous shared memory (memfd_create): " + DescribeErrno(errno) +
                      "; a container's seccomp profile must allow it");
  }
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return Status(StatusCode::kResourceExhausted,
                  "no shared memory of " + std::to_string(bytes) + " bytes: " + DescribeErrno(errno));
  }
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) {
    return Internal("shared memory cannot be sealed against a change of its size: " + DescribeErrno(errno));
  }
  return descriptor;
}

}  // namespace

Status ShmMemory::Map(Fd descriptor, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    return {StatusCode::kResourceExhausted, "cannot map shared memory of " + std::to_string(bytes) +
                                                " bytes: " + DescribeErrno(errno) +
                                                "; free memory, or raise this process's limit (ulimit -v)"};
  }
  descriptor_ = std::move(descriptor);
  data_ = static_cast<std::byte*>(data);
  size_ = bytes;
  return OkStatus();
}

Result<ShmMemory> ShmMemory::Create(size_t bytes) {
  FD_RETURN_IF_ERROR(CheckFileSizeLimit(bytes));
  ShmMemory memory;
  FD_RETURN_IF_ERROR(MapOnHugePagesIfFree(bytes, [&](bool huge) -> Status {
    FD_ASSIGN_OR_RETURN(Fd descriptor, MakeDescriptor(bytes, huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0U));
    return memory.Map(std::move(descriptor), bytes);
  }));
  (void)madvise(memory.data_, bytes, MADV_HUGEPAGE);  // where the host does that for shared memory
  return memory;
}

Result<ShmMemory> ShmMemory::Adopt(Fd descriptor, size_t bytes) {
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return DataLoss("the peer passes a descriptor that is no memory sealed against a change of its size");
  }
  struct stat status {};
  if (fstat(descriptor.get(), &status) != 0 || status.st_size != static_cast<off_t>(bytes)) {
    return DataLoss("the peer passes shared memory of " + std::to_string(status.st_size) + " bytes, expected " +
                    std::to_string(bytes));
  }
  ShmMemory memory;
  FD_RETURN_IF_ERROR(memory.Map(std::move(descriptor), bytes));
  return memory;
}

ShmMemory::ShmMemory(ShmMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

ShmMemory& ShmMemory::operator=(ShmMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ShmMemory::~ShmMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace fastdecode
