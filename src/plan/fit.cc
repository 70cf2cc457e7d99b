#include "plan/fit.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fastdecode::plan {
namespace {

constexpr size_t kTerms = 3;
using Terms = std::array<double, kTerms>;

// A sample's terms over its seconds: a perfect fit gives 1.
Terms TermsOf(const AttendSample& sample) {
  return {1 / sample.seconds, sample.rows / sample.seconds, sample.tokens / sample.seconds};
}

// The least squares with the terms of `mask` alone, by Gaussian elimination of the normal
// equations; false if they don't determine them.
bool Solve(const std::vector<AttendSample>& samples, unsigned mask, Terms* result) {
  std::vector<size_t> used;
  for (size_t i = 0; i < kTerms; ++i) {
    if ((mask >> i & 1U) != 0) used.push_back(i);
  }
  const size_t n = used.size();
  // Each term in units of its largest, or the matrix would be of very different sizes.
  Terms scale{};
  for (const AttendSample& sample : samples) {
    const Terms terms = TermsOf(sample);
    for (size_t i = 0; i < kTerms; ++i) scale[i] = std::max(scale[i], terms[i]);
  }
  double matrix[kTerms][kTerms + 1] = {};
  for (const AttendSample& sample : samples) {
    const Terms terms = TermsOf(sample);
    for (size_t i = 0; i < n; ++i) {
      const double a = terms[used[i]] / scale[used[i]];
      for (size_t j = 0; j < n; ++j) matrix[i][j] += a * terms[used[j]] / scale[used[j]];
      matrix[i][n] += a;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (!(std::abs(matrix[i][i]) > 1e-12)) return false;
    for (size_t k = i + 1; k < n; ++k) {
      const double factor = matrix[k][i] / matrix[i][i];
      for (size_t j = i; j <= n; ++j) matrix[k][j] -= factor * matrix[i][j];
    }
  }
  *result = {};
  for (size_t i = n; i-- > 0;) {
    double value = matrix[i][n];
    for (size_t j = i + 1; j < n; ++j) value -= matrix[i][j] * (*result)[used[j]] * scale[used[j]];
    (*result)[used[i]] = value / matrix[i][i] / scale[used[i]];
  }
  return true;
}

double ErrorOf(const AttendSample& sample, const Terms& line) {
  const Terms terms = TermsOf(sample);
  return terms[0] * line[0] + terms[1] * line[1] + terms[2] * line[2] - 1;
}

}  // namespace

RPartTimes FitRPart(const std::vector<AttendSample>& samples) {
  constexpr unsigned kToken = 4;  // always there
  Terms best{};
  double least = -1;
  for (const unsigned others : {3U, 2U, 1U, 0U}) {
    Terms line{};
    if (!Solve(samples, kToken | others, &line)) continue;
    if (line[0] < 0 || line[1] < 0 || !(line[2] > 0)) continue;
    double sum = 0;
    for (const AttendSample& sample : samples) sum += ErrorOf(sample, line) * ErrorOf(sample, line);
    if (least >= 0 && sum >= least) continue;
    least = sum;
    best = line;
  }
  RPartTimes times{.seconds_per_token = best[2], .seconds_per_row = best[1], .seconds_per_call = best[0]};
  for (const AttendSample& sample : samples) times.spread = std::max(times.spread, std::abs(ErrorOf(sample, best)));
  return times;
}

Curve FitServing(const std::vector<ServingSample>& samples) {
  double w = 0, wn = 0, wnn = 0, ws = 0, wns = 0, most = 1;  // sums of weight, times rows, times extra
  for (const ServingSample& sample : samples) {
    const double weight = 1 / (sample.pass_s * sample.pass_s);
    w += weight;
    wn += weight * sample.rows;
    wnn += weight * sample.rows * sample.rows;
    ws += weight * sample.extra_s;
    wns += weight * sample.rows * sample.extra_s;
    most = std::max(most, sample.rows);
  }
  const double determinant = w * wnn - wn * wn;
  double row = determinant > 1e-9 * w * wnn ? (w * wns - wn * ws) / determinant : 0;
  double pass = (ws - row * wn) / w;
  if (pass < 0) {  // through nothing
    pass = 0;
    row = wns / wnn;
  } else if (row < 0) {
    row = 0;
    pass = ws / w;
  }
  constexpr double kNothing = 1e-9;  // a profile's times are above 0
  const auto at = [&](double rows) { return std::max(kNothing, pass + row * rows); };
  if (most <= 1) return Curve({{1, at(1), 0}});
  return Curve({{1, at(1), 0}, {most, at(most), 0}});
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t cut = values.size() / 10;
  const double median = Median(values);
  return median > 0 ? (values[values.size() - 1 - cut] - values[cut]) / median : 0;
}

}  // namespace fastdecode::plan
