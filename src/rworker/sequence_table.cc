#include "rworker/sequence_table.h"

#include <bit>

#include "common/base/logging.h"

namespace fastdecode::rworker {

SequenceTable::SequenceTable(int32_t capacity)
    : entries_(std::bit_ceil(static_cast<size_t>(capacity) * 2 + 1)), capacity_(capacity) {}

// SplitMix64's finaliser: ids are often consecutive numbers.
size_t SequenceTable::Home(uint64_t sequence) const {
  uint64_t x = sequence + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<size_t>(x ^ (x >> 31)) & (entries_.size() - 1);
}

int32_t SequenceTable::Find(uint64_t sequence) const {
  for (size_t i = Home(sequence); entries_[i].slot != kNoSlot; i = (i + 1) & (entries_.size() - 1)) {
    if (entries_[i].sequence == sequence) return entries_[i].slot;
  }
  return kNoSlot;
}

void SequenceTable::Insert(uint64_t sequence, int32_t slot) {
  CHECK_LT(size_, capacity_);
  size_t i = Home(sequence);
  for (; entries_[i].slot != kNoSlot; i = (i + 1) & (entries_.size() - 1)) {
    CHECK_NE(entries_[i].sequence, sequence) << "sequence is in the table already";
  }
  entries_[i] = {sequence, slot};
  ++size_;
}

void SequenceTable::Erase(uint64_t sequence) {
  const size_t mask = entries_.size() - 1;
  size_t hole = Home(sequence);
  while (entries_[hole].slot != kNoSlot && entries_[hole].sequence != sequence) hole = (hole + 1) & mask;
  CHECK_NE(entries_[hole].slot, kNoSlot) << "sequence " << sequence << " is not in the table";
  // Backward shift: an entry moves into the hole unless its home lies after the hole.
  for (size_t i = (hole + 1) & mask; entries_[i].slot != kNoSlot; i = (i + 1) & mask) {
    const size_t home = Home(entries_[i].sequence);
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      entries_[hole] = entries_[i];
      hole = i;
    }
  }
  entries_[hole] = {};
  --size_;
}

}  // namespace fastdecode::rworker
