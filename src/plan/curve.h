// A time that depends on a size, as points that were measured.
#pragma once

#include <vector>

namespace fastdecode::plan {

struct TimePoint {
  double at = 0;       // rows, tokens or bytes, as the owner says
  double seconds = 0;  // median
  double spread = 0;   // (largest - smallest) / median of the repetitions
};

// Straight lines between points. Beyond the last one the last line goes on, but never below the
// last point, since measured times may fall by chance; below the first one the first line, but
// never below nothing and never above the first point. One point: in proportion above it, and
// the point's own time below.
class Curve {
 public:
  Curve() = default;
  explicit Curve(std::vector<TimePoint> points) : points_(std::move(points)) {}  // ascending `at`, all above 0

  double At(double x) const;  // seconds; 0 of an empty curve
  bool empty() const { return points_.empty(); }
  const std::vector<TimePoint>& points() const { return points_; }

 private:
  std::vector<TimePoint> points_;
};

}  // namespace fastdecode::plan
