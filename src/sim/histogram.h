// A distribution of times in logarithmic buckets: 10^9 values in a few KB.
#pragma once

#include <array>
#include <cstdint>

namespace fastdecode::sim {

// Percentiles are right within 1 %; mean and max are exact. A plain value; one thread.
class Histogram {
 public:
  void Add(int64_t ns, int64_t count = 1);
  int64_t count() const { return count_; }
  double mean_ms() const;
  double max_ms() const { return static_cast<double>(max_ns_) / 1e6; }
  // Nearest rank, the middle of its bucket; 0 if there is none.
  double PercentileMs(double share) const;

 private:
  // Bucket i holds [1 us * 1.02^i, 1 us * 1.02^(i+1)).
  static constexpr int kBuckets = 1400;
  std::array<int64_t, kBuckets> buckets_{};
  int64_t count_ = 0;
  int64_t max_ns_ = 0;
  double sum_ns_ = 0;
};

}  // namespace fastdecode::sim
