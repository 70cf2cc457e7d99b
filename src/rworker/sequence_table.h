// Sequence id -> slot: an open-addressing table of fixed capacity, no allocation
// after the constructor. Not thread-safe for writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdecode::rworker {

inline constexpr int32_t kNoSlot = -1;

class SequenceTable {
 public:
  explicit SequenceTable(int32_t capacity);  // entries that it must hold

  int32_t Find(uint64_t sequence) const;         // slot or kNoSlot
  void Insert(uint64_t sequence, int32_t slot);  // absent before; capacity not exceeded
  void Erase(uint64_t sequence);                 // present before
  int32_t size() const { return size_; }

 private:
  struct Entry {
    uint64_t sequence = 0;
    int32_t slot = kNoSlot;  // kNoSlot: empty
  };
  size_t Home(uint64_t sequence) const;

  std::vector<Entry> entries_;  // a power of two, at least twice the capacity
  int32_t capacity_;
  int32_t size_ = 0;
};

}  // namespace fastdecode::rworker
