// Time as the project sees it. Whatever has a deadline takes a Clock, so that
// tests turn its hands.
#pragma once

#include <chrono>
#include <cstdint>

namespace fastdecode {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;  // Monotonic, nanoseconds, arbitrary origin. Any thread.
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static const SteadyClock& Get() {
    static const SteadyClock clock;
    return clock;
  }
};

inline int64_t NowNs() { return SteadyClock::Get().NowNs(); }

}  // namespace fastdecode
