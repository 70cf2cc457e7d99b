#include "sim/histogram.h"

#include <algorithm>
#include <cmath>

namespace fastdecode::sim {
namespace {

constexpr double kRatio = 1.02;

}  // namespace

void Histogram::Add(int64_t ns, int64_t count) {
  static const double log_ratio = std::log(kRatio);
  const double us = std::max(1.0, static_cast<double>(ns) / 1e3);
  const int bucket = std::min(kBuckets - 1, static_cast<int>(std::log(us) / log_ratio));
  buckets_[static_cast<size_t>(bucket)] += count;
  count_ += count;
  sum_ns_ += static_cast<double>(ns) * static_cast<double>(count);
  max_ns_ = std::max(max_ns_, ns);
}

double Histogram::mean_ms() const { return count_ == 0 ? 0 : sum_ns_ / static_cast<double>(count_) / 1e6; }

double Histogram::PercentileMs(double share) const {
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen > 0 && seen >= rank) return std::min(std::pow(kRatio, static_cast<double>(i) + 0.5) / 1e3, max_ms());
  }
  return 0;
}

}  // namespace fastdecode::sim
