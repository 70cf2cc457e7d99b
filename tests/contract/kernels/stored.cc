#include "stored.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace fastdecode::kernels {
namespace {

constexpr int kTokens = 32;
constexpr int kPart = 32;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int Half(const std::byte* at) { return std::to_integer<int>(at[0]) | std::to_integer<int>(at[1]) << 8; }

double Bf16At(const std::byte* at) { return Bf16Value(static_cast<uint16_t>(Half(at))); }

// Of four: the first and third in the lower half of a little-endian word, the others in its upper half.
double Byte(const std::byte* word, int i) { return std::to_integer<int>(word[i % 2 * 2 + i / 2]) - 128; }

// Of eight: the even ones in the lower half, from its lowest bits up, the odd ones in the upper.
double Nibble(const std::byte* word, int i) {
  return (std::to_integer<int>(word[i % 2 * 2 + i / 4]) >> (i / 2 % 2 * 4) & 15) - 8;
}

int Padded(int head_dim) { return head_dim % 16 == 0 ? head_dim : head_dim + 8; }
int PartsOf(int head_dim) { return head_dim / kPart + (head_dim % kPart != 0 ? 1 : 0); }

// Elements of the part that holds d.
int Width(int head_dim, int d) { return std::min(kPart, Padded(head_dim) - d / kPart * kPart); }

}  // namespace

double HalfValue(uint16_t half) {
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double Bf16Value(uint16_t bf16) {
  const double sign = (bf16 & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bf16 >> 7) & 255;
  const int mantissa = bf16 & 127;
  if (exponent == 255) return mantissa != 0 ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, -133);
  return sign * std::ldexp(128 + mantissa, exponent - 134);
}

uint16_t NearestHalf(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520) return sign | 0x7c00;
  const int exponent = magnitude == 0 ? -14 : std::max(-14, std::ilogb(magnitude));
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));  // 1024 .. 2048, or less
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + steps));
}

int64_t StoredKeyBytes(KvFormat format, int head_dim) {
  if (format == KvFormat::kInt8) return head_dim * kTokens + kTokens * 2;
  if (format == KvFormat::kInt4) return head_dim / 8 * kTokens * 4 + PartsOf(head_dim) * kTokens * 2;
  return head_dim * kTokens * 2;
}

int64_t StoredValueBytes(KvFormat format, int head_dim) {
  if (format == KvFormat::kInt8) return Padded(head_dim) * kTokens + kTokens * 2;
  if (format == KvFormat::kInt4)
    return Padded(head_dim) / 16 * (kTokens / 8) * 16 * 4 + PartsOf(head_dim) * kTokens * 2;
  return Padded(head_dim) * kTokens * 2;
}

double StoredKeyScale(KvFormat format, const std::byte* tile, int head_dim, int token, int d) {
  if (format == KvFormat::kInt8) return Bf16At(tile + head_dim * kTokens + token * 2);
  if (format == KvFormat::kInt4) return Bf16At(tile + head_dim / 8 * kTokens * 4 + (d / kPart * kTokens + token) * 2);
  return 1;
}

double StoredKey(KvFormat format, const std::byte* tile, int head_dim, int token, int d) {
  const double scale = StoredKeyScale(format, tile, head_dim, token, d);
  if (format == KvFormat::kInt8) return scale * Byte(tile + (d / 4 * kTokens + token) * 4, d % 4);
  if (format == KvFormat::kInt4) return scale * Nibble(tile + (d / 8 * kTokens + token) * 4, d % 8);
  // Of two in a little-endian word: the first in the lower half.
  if (format == KvFormat::kBf16) return Bf16At(tile + (d / 2 * kTokens + token) * 4 + d % 2 * 2);
  return HalfValue(static_cast<uint16_t>(Half(tile + (d * kTokens + token) * 2)));
}

double StoredValueScale(KvFormat format, const std::byte* tile, int head_dim, int token, int d) {
  const int padded = Padded(head_dim);
  if (format == KvFormat::kInt8) return Bf16At(tile + padded * kTokens + token * 2);
  if (format == KvFormat::kInt4) return Bf16At(tile + padded * kTokens / 2 + (d / kPart * kTokens + token) * 2);
  return 1;
}

double StoredValue(KvFormat format, const std::byte* tile, int head_dim, int token, int d) {
  const double scale = StoredValueScale(format, tile, head_dim, token, d);
  const int width = Width(head_dim, d);
  const int before = d / kPart * kPart * kTokens;  // elements of the parts before
  if (format == KvFormat::kInt8) {
    return scale * Byte(tile + before + (token / 4 * width + d % kPart) * 4, token % 4);
  }
  if (format == KvFormat::kInt4) {
    return scale * Nibble(tile + before / 2 + (token / 8 * width + d % kPart) * 4, token % 8);
  }
  if (format == KvFormat::kBf16) return Bf16At(tile + before * 2 + (token / 2 * width + d % kPart) * 4 + token % 2 * 2);
  return HalfValue(static_cast<uint16_t>(Half(tile + (before + token * width + d % kPart) * 2)));
}

}  // namespace fastdecode::kernels
