#include "tests/support/count_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uint64_t> allocations{0};

void* Allocate(size_t bytes, size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(bytes) : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* AllocateOrNull(size_t bytes, size_t alignment) noexcept {
  try {
    return Allocate(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

size_t Raw(std::align_val_t alignment) { return static_cast<size_t>(alignment); }

}  // namespace

namespace fastdecode {

uint64_t CountedAllocations() { return allocations.load(std::memory_order_relaxed); }

}  // namespace fastdecode

void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new[](size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) { return Allocate(bytes, Raw(alignment)); }
void* operator new[](size_t bytes, std::align_val_t alignment) { return Allocate(bytes, Raw(alignment)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return AllocateOrNull(bytes, 1); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return AllocateOrNull(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, Raw(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, Raw(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
