// An example of a KV codec of one's own: FP8 E4M3 with a scale for each token and head.
// docs/kv_formats.md walks through it. Built into FastDecode with
//   cmake --preset release -DFASTDECODE_KV_CODECS=docs/examples/kv_codec_e4m3.cc
// and used by "kv_dtype": "e4m3" in a config.
//
// Layout of a tile, kTileTokens tokens of one KV head:
//   keys    [head_dim][32] bytes, then [32] scales of 2 bytes (bf16)
//   values  [32][head_dim] bytes, then [32] scales of 2 bytes (bf16)
// Keys lie dimension by dimension, so that a vector of scores, a token a lane, grows with
// each of them; values token by token, so that the output grows with each token. Both
// loops below are then plain enough for a compiler to vectorise.
//
// E4M3 (OCP 8-bit floating point specification, 2023): sign, 4 bits of exponent with bias
// 7, 3 bits of fraction; largest 448, no infinity, 0x7f and 0xff are NaN.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/f16.h"
#include "kernels/kv_codecs.h"
#include "kernels/quantise.h"  // Bf16ToFloat, Bf16NotBelow

namespace fastdecode::kernels {
namespace {

constexpr float kLargestE4m3 = 448.0f;
constexpr uint8_t kLargestCode = 0x7e;
constexpr uint8_t kNaN = 0x7f;

constexpr float Decode(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  if ((code & 0x7f) == kNaN) return __builtin_nanf("");
  // 2^(exponent - 7) * (1 + fraction / 8); below the smallest exponent 2^-6 * fraction / 8.
  float value = static_cast<float>(exponent == 0 ? fraction : 8 + fraction) / 512.0f;
  for (int i = 1; i < exponent; ++i) value *= 2.0f;
  return (code & 0x80) != 0 ? -value : value;
}

constexpr std::array<float, 256> kDecoded = [] {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) table[static_cast<size_t>(code)] = Decode(static_cast<uint8_t>(code));
  return table;
}();

// Nearest, ties to even. |x| beyond the largest value becomes the largest value.
uint8_t Encode(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float magnitude = std::fabs(x);
  if (magnitude != magnitude) return sign | kNaN;
  if (magnitude >= kLargestE4m3) return sign | kLargestCode;
  if (magnitude < 0x1p-6f) {  // no leading one: multiples of 2^-9
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 512.0f)));
  }
  uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffffu + (bits >> 20 & 1u);  // of f32's 23 bits of fraction 3 stay; a carry goes on into the exponent
  const uint32_t code = ((bits >> 23) - 127 + 7) << 3 | (bits >> 20 & 7u);
  return static_cast<uint8_t>(sign | code);
}

// Scale `token` of those that follow the tile's elements.
float ScaleAt(const std::byte* tile, int32_t head_dim, int32_t token) {
  uint16_t scale;
  std::memcpy(&scale, tile + int64_t{head_dim} * kTileTokens + token * 2, sizeof(scale));
  return Bf16ToFloat(scale);
}

int64_t TileBytes(int32_t head_dim) { return int64_t{head_dim} * kTileTokens + kTileTokens * 2; }

// Stores a token's row, element d at tile + first + d * stride, and its scale. The largest
// finite element becomes 448; infinities, which E4M3 has not, become 448 too and are counted.
int Store(const float* row, int32_t head_dim, int32_t token, std::byte* tile, int64_t first, int64_t stride) {
  float largest = 0;
  for (int32_t d = 0; d < head_dim; ++d) {
    const float magnitude = std::fabs(row[d]);
    if (std::isfinite(magnitude) && magnitude > largest) largest = magnitude;
  }
  const uint16_t scale = Bf16NotBelow(largest / kLargestE4m3);
  std::memcpy(tile + int64_t{head_dim} * kTileTokens + token * 2, &scale, sizeof(scale));
  const float divisor = scale == 0 ? 1.0f : Bf16ToFloat(scale);
  int beyond = 0;
  for (int32_t d = 0; d < head_dim; ++d) {
    const bool infinite = std::isinf(row[d]);
    beyond += infinite ? 1 : 0;
    const float x = infinite ? std::copysign(kLargestE4m3, row[d]) : row[d] / divisor;
    tile[first + d * stride] = static_cast<std::byte>(Encode(x));
  }
  return beyond;
}

int StoreKey(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  return Store(row, head_dim, token, tile, token, kTileTokens);
}
int StoreValue(const float* row, int32_t head_dim, int32_t token, std::byte* tile) {
  return Store(row, head_dim, token, tile, int64_t{token} * head_dim, 1);
}

// The query vectors as Scores wants them: f32, scaled. A codec may pack them as it likes.
int64_t PackedFloats(int32_t vectors, int32_t head_dim) { return int64_t{vectors} * head_dim; }

void LoadQuery(const QueryArgs& a) {
  const int32_t width = a.group * a.head_dim;
  for (int32_t r = 0; r < a.rows; ++r) {
    for (int32_t i = 0; i < width; ++i) a.packed[r * width + i] = HalfToFloat(a.q[r * a.row_stride + i]) * a.scale;
  }
}

// Decodes `count` elements.
void DecodeRow(const std::byte* codes, int32_t count, float* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = kDecoded[static_cast<size_t>(codes[i])];
}

// scores[v][t] = packed[v] . key of token t, all 32 lanes.
void Scores(const ScoreArgs& a) {
  std::fill_n(a.scores, int64_t{a.vectors} * kTileTokens, 0.0f);
  for (int32_t d = 0; d < a.head_dim; ++d) {
    float keys[kTileTokens];  // element d of each token, decoded once for all query vectors
    DecodeRow(a.tile + int64_t{d} * kTileTokens, kTileTokens, keys);
    for (int32_t v = 0; v < a.vectors; ++v) {
      const float q = a.packed[v * a.head_dim + d];
      float* const scores = a.scores + v * kTileTokens;
      for (int32_t t = 0; t < kTileTokens; ++t) scores[t] += q * keys[t];
    }
  }
  float scales[kTileTokens];
  for (int32_t t = 0; t < kTileTokens; ++t) scales[t] = ScaleAt(a.tile, a.head_dim, t);
  for (int32_t v = 0; v < a.vectors; ++v) {
    for (int32_t t = 0; t < kTileTokens; ++t) a.scores[v * kTileTokens + t] *= scales[t];
  }
}

// acc[v] += weights[v][t] * value of token t, for the tokens that exist.
void AddValues(const ValueArgs& a) {
  for (int32_t t = 0; t < a.tokens; ++t) {
    float values[kMaxHeadDim];
    DecodeRow(a.tile + int64_t{t} * a.head_dim, a.head_dim, values);
    const float scale = ScaleAt(a.tile, a.head_dim, t);
    for (int32_t v = 0; v < a.vectors; ++v) {
      const float weight = a.weights[v * kTileTokens + t] * scale;
      float* const acc = a.acc + int64_t{v} * PaddedDim(a.head_dim);
      for (int32_t d = 0; d < a.head_dim; ++d) acc[d] += weight * values[d];
    }
  }
}

}  // namespace

// Named like this file, so that CMake can list it. Name and code are what configs and the
// handshake say.
extern const UserCodec kv_codec_e4m3;
constinit const UserCodec kv_codec_e4m3 = {
    "e4m3",
    64,
    {&TileBytes, &StoreKey, &PackedFloats, &LoadQuery, &Scores},
    {&TileBytes, &StoreValue, &AddValues},
};

}  // namespace fastdecode::kernels
