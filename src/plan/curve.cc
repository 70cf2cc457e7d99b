#include "plan/curve.h"

#include <algorithm>

namespace fastdecode::plan {

double Curve::At(double x) const {
  if (points_.empty()) return 0;
  const TimePoint& first = points_.front();
  if (points_.size() == 1) return x <= first.at ? first.seconds : first.seconds * x / first.at;
  auto right =
      std::lower_bound(points_.begin(), points_.end(), x, [](const TimePoint& p, double v) { return p.at < v; });
  right = std::clamp(right, points_.begin() + 1, points_.end() - 1);
  const TimePoint& a = *(right - 1);
  const TimePoint& b = *right;
  const double seconds = a.seconds + (b.seconds - a.seconds) * (x - a.at) / (b.at - a.at);
  if (x < first.at) return std::clamp(seconds, 0.0, first.seconds);
  return x > b.at ? std::max(seconds, b.seconds) : seconds;
}

}  // namespace fastdecode::plan
