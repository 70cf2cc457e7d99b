#include "sworker/model/cpu_elementwise.h"

#include <array>
#include <cmath>

#include "common/base/model_shape.h"

namespace fastdecode {
namespace {

constexpr int64_t kLanes = 16;  // sums that run side by side, so that the loop vectorises

template <typename T>
float SumOfSquares(const T* x, int64_t n) {
  std::array<float, kLanes> sums{};
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const auto v = static_cast<float>(x[i + j]);
      sums[static_cast<size_t>(j)] += v * v;
    }
  }
  for (int64_t i = whole; i < n; ++i) {
    const auto v = static_cast<float>(x[i]);
    sums[static_cast<size_t>(i - whole)] += v * v;
  }
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

}  // namespace

template <typename T>
void RmsNormRow(const T* x, const T* weight, T* y, int64_t n, float eps) {
  const float scale = 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    const T normed = static_cast<T>(static_cast<float>(x[i]) * scale);
    y[i] = static_cast<T>(static_cast<float>(normed) * static_cast<float>(weight[i]));
  }
}

template <typename T>
void RopeHead(const T* x, const float* cos, const float* sin, T* y, int64_t half) {
  std::array<float, kMaxHeadDim> in;  // y may be x
  for (int64_t i = 0; i < 2 * half; ++i) in[static_cast<size_t>(i)] = static_cast<float>(x[i]);
  const float* low = in.data();
  const float* high = low + half;
  for (int64_t i = 0; i < half; ++i) y[i] = static_cast<T>(low[i] * cos[i] - high[i] * sin[i]);
  for (int64_t i = 0; i < half; ++i) y[half + i] = static_cast<T>(high[i] * cos[i] + low[i] * sin[i]);
}

template void RmsNormRow(const float*, const float*, float*, int64_t, float);
template void RmsNormRow(const c10::BFloat16*, const c10::BFloat16*, c10::BFloat16*, int64_t, float);
template void RopeHead(const float*, const float*, const float*, float*, int64_t);
template void RopeHead(const c10::BFloat16*, const float*, const float*, c10::BFloat16*, int64_t);

}  // namespace fastdecode
