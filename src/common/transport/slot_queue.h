// Slot indexes, first in, first out; never more than its capacity, and nothing is
// allocated after Reset.
#pragma once

#include <cstddef>
#include <vector>

namespace fastdecode {

class SlotQueue {
 public:
  void Reset(int capacity) {
    ring_.assign(static_cast<size_t>(capacity), 0);
    first_ = count_ = 0;
  }
  bool empty() const { return count_ == 0; }
  int size() const { return static_cast<int>(count_); }
  int front() const { return ring_[first_]; }
  void push(int index) { ring_[(first_ + count_++) % ring_.size()] = index; }
  int pop() {
    const int index = ring_[first_];
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return index;
  }

 private:
  std::vector<int> ring_;
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace fastdecode
