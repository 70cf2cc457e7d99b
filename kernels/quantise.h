// How a row of f32 becomes what is stored. Plain C++: all kernels store the same bytes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fastdecode::kernels {
namespace {  // compiled with several instruction sets' flags

inline float Bf16ToFloat(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// Nearest, ties to even; NaN stays NaN.
inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The same for what is stored: a finite value that would round to infinity becomes the largest, and is counted.
inline uint16_t SaturatedBf16(float x, int& beyond) {
  const uint16_t nearest = FloatToBf16(x);
  if ((nearest & 0x7fffu) != 0x7f80u || std::fabs(x) > 3.4028234663852886e38f) return nearest;
  ++beyond;
  return static_cast<uint16_t>(nearest - 1);
}

// The least bf16 that is not below x >= 0.
inline uint16_t Bf16NotBelow(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

inline constexpr uint16_t kBf16NaN = 0x7fc0;
inline constexpr uint16_t kBf16Normal = 0x0080;  // the least; the inverse of a lesser scale would be infinite

// Largest magnitude of a strided row; NaN or infinity where there is one.
inline float LargestMagnitude(const float* row, int32_t count) {
  float largest = 0;
  bool finite = true;
  for (int32_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(row[i]);
    finite = finite && magnitude <= 3.4028234663852886e38f;
    largest = magnitude > largest ? magnitude : largest;
  }
  return finite ? largest : __builtin_nanf("");
}

// row / scale as integers within -limit .. limit, the scale rounded up to a bf16, which is
// returned; a row that is not finite has a NaN scale.
inline uint16_t QuantiseInt8(const float* row, int32_t count, int8_t* out) {
  const float largest = LargestMagnitude(row, count);
  const bool finite = largest == largest;
  const uint16_t scale = finite ? Bf16NotBelow(largest / 127.0f) : kBf16NaN;
  const float inverse = finite && scale >= kBf16Normal ? 1.0f / Bf16ToFloat(scale) : 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    const float x = finite ? row[i] * inverse : 0.0f;
    out[i] = static_cast<int8_t>(static_cast<int32_t>(x + (x < 0 ? -0.5f : 0.5f)));
  }
  return scale;
}

// The same for -8 .. 7, one value a byte. The element of largest magnitude becomes -8, so the
// scale may be negative: one level more than a symmetric code has.
inline uint16_t QuantiseInt4(const float* row, int32_t count, int8_t* out) {
  float extreme = 0;
  bool finite = true;
  for (int32_t i = 0; i < count; ++i) {
    finite = finite && std::fabs(row[i]) <= 3.4028234663852886e38f;
    extreme = std::fabs(row[i]) > std::fabs(extreme) ? row[i] : extreme;
  }
  const uint16_t magnitude = Bf16NotBelow(std::fabs(extreme) / 8.0f);
  const auto scale = static_cast<uint16_t>(extreme > 0 ? magnitude | 0x8000u : magnitude);
  const float inverse = finite && magnitude >= kBf16Normal ? 1.0f / Bf16ToFloat(scale) : 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    const float x = finite ? row[i] * inverse : 0.0f;
    const auto q = static_cast<int32_t>(x + (x < 0 ? -0.5f : 0.5f));
    out[i] = static_cast<int8_t>(q > 7 ? 7 : q < -8 ? -8 : q);
  }
  return finite ? scale : kBf16NaN;
}

}  // namespace
}  // namespace fastdecode::kernels
