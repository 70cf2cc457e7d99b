// Anonymous memory with a descriptor that another process can be given.
//
// It is sealed against any change of its size, so a peer can't take pages away under a
// reader, and its size is checked before it is mapped.
#pragma once

#include <cstddef>
#include <span>

#include "common/base/fd.h"
#include "common/base/status.h"

namespace fastdecode {

class ShmMemory {
 public:
  ShmMemory() = default;
  // Zeros, on huge pages if there are any: bytes is a multiple of a page (of a huge one, if
  // it is as large). kResourceExhausted and the limit that forbids it.
  static Result<ShmMemory> Create(size_t bytes);
  // What a peer passed: must be sealed memory of exactly this size.
  static Result<ShmMemory> Adopt(Fd descriptor, size_t bytes);

  ShmMemory(ShmMemory&& other) noexcept;
  ShmMemory& operator=(ShmMemory&& other) noexcept;
  ~ShmMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_.get(); }
  // The mapping stays.
  void CloseDescriptor() { descriptor_.Reset(); }

 private:
  Status Map(Fd descriptor, size_t bytes);

  Fd descriptor_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastdecode
