// A bounded queue between two threads, one pushing and one popping; no lock, and no
// allocation after its construction.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

namespace fastdecode::rworker {

template <typename T, uint32_t kCapacity>
class SpscRing {
  static_assert((kCapacity & (kCapacity - 1)) == 0, "a power of two");

 public:
  // Producer. False: full.
  bool TryPush(T&& value) {
    uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == kCapacity) return false;
    items_[tail % kCapacity] = std::move(value);
    tail_.store(tail + 1, std::memory_order_release);
    Signal();
    return true;
  }

  // Consumer. False: empty.
  bool TryPop(T& value) {
    uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    value = std::move(items_[head % kCapacity]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Consumer. Sleeps until there is something; false: closed and empty.
  bool WaitPop(T& value) {
    while (true) {
      uint32_t signal = signal_.load(std::memory_order_acquire);
      bool closed = closed_.load(std::memory_order_acquire);
      if (TryPop(value)) return true;
      if (closed) return false;
      signal_.wait(signal, std::memory_order_acquire);
    }
  }

  // Producer: nothing more will be pushed.
  void Close() {
    closed_.store(true, std::memory_order_release);
    Signal();
  }

 private:
  void Signal() {
    signal_.fetch_add(1, std::memory_order_release);
    signal_.notify_one();
  }

  std::array<T, kCapacity> items_{};
  alignas(64) std::atomic<uint32_t> head_{0};
  alignas(64) std::atomic<uint32_t> tail_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};  // changes with each push and the close
  std::atomic<bool> closed_{false};
};

}  // namespace fastdecode::rworker
