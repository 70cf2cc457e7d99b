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

inline constexpr float kLargestFloat = 3.4028234663852886e38f;

struct QuantisedScale {
  uint16_t stored;  // bf16
  float inverse;    // 0 where all elements are stored as 0
};
// `extreme`: the group's element of largest magnitude, NaN if one is not finite, and then so is the scale.
// A scale is rounded up to a bf16, so that no element of int8 is beyond -127 .. 127.
inline QuantisedScale ScaleOfInt8(float extreme) {
  if (extreme != extreme) return {kBf16NaN, 0};
  const uint16_t scale = Bf16NotBelow(std::fabs(extreme) / 127.0f);
  return {scale, scale >= kBf16Normal ? 1.0f / Bf16ToFloat(scale) : 0.0f};
}
// The extreme becomes -8, so the scale may be negative: one level more than a symmetric code has.
inline QuantisedScale ScaleOfInt4(float extreme) {
  if (extreme != extreme) return {kBf16NaN, 0};
  const uint16_t magnitude = Bf16NotBelow(std::fabs(extreme) / 8.0f);
  const auto scale = static_cast<uint16_t>(extreme > 0 ? magnitude | 0x8000u : magnitude);
  return {scale, magnitude >= kBf16Normal ? 1.0f / Bf16ToFloat(scale) : 0.0f};
}

// The group's first element of largest magnitude; NaN if one is not finite.
inline float ExtremeOf(const float* row, int32_t count) {
  float extreme = 0;
  bool finite = true;
  for (int32_t i = 0; i < count; ++i) {
    finite = finite && std::fabs(row[i]) <= kLargestFloat;
    extreme = std::fabs(row[i]) > std::fabs(extreme) ? row[i] : extreme;
  }
  return finite ? extreme : __builtin_nanf("");
}

// Nearest, halves away from zero; at most `largest`.
inline int Quantise(float x, const QuantisedScale& scale, int largest) {
  const float q = scale.inverse == 0 ? 0.0f : x * scale.inverse;
  const auto nearest = static_cast<int>(q + (q < 0 ? -0.5f : 0.5f));
  return nearest > largest ? largest : nearest;
}

}  // namespace
}  // namespace fastdecode::kernels
