// The R-part as a line through what was measured of it.
#pragma once

#include <vector>

#include "plan/profile.h"

namespace fastdecode::plan {

struct AttendSample {
  double rows = 0;
  double tokens = 0;  // cached, of all rows
  double seconds = 0;
};

// seconds = call + rows * row + tokens * token with none below 0 and least relative
// errors; `spread` of the result is the largest of these errors. At least one sample, all
// with seconds above 0.
RPartTimes FitRPart(const std::vector<AttendSample>& samples);

// What a live pass takes beyond its parts.
struct ServingSample {
  double rows = 0;
  double extra_s = 0;  // may be below 0 by chance
  double pass_s = 0;   // of all: above 0
};

// A line through them, nowhere below 0, with least errors as shares of the pass: the difference of two nearly
// equal times scatters by far more than what it is. At least one sample.
Curve FitServing(const std::vector<ServingSample>& samples);

// Of at least one value; the mean of the middle two of an even number.
double Median(std::vector<double> values);
// Of those values: (largest - smallest) / median, without the tenth at either end.
double Spread(std::vector<double> values);

}  // namespace fastdecode::plan
