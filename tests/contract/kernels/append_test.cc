// What a cache holds after Append: the same bytes whichever kernel stored them, each row's
// own elements and no others, and numbers as near as the format allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "attention_case.h"
#include "format_pairs.h"
#include "stored.h"

namespace fastdecode::kernels {
namespace {

constexpr int kDims[] = {8, 16, 24, 32, 40, 64, 80, 128, 136, 256};
constexpr int kKvHeads = 2;
constexpr int kBlockTokens = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint16_t UpperHalf(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

// Rows of f32 numbers [tokens, kKvHeads, head_dim], and the same numbers as another type.
class Rows {
 public:
  explicit Rows(int head_dim) : head_dim_(head_dim), values_(static_cast<size_t>(kBlockTokens * kKvHeads * head_dim)) {}

  float* row(int token, int head) { return &values_[At(token, head)]; }
  const float* row(int token, int head) const { return &values_[At(token, head)]; }
  int head_dim() const { return head_dim_; }

  // Rounds all to what the type holds.
  void RoundTo(RowType type) {
    for (float& x : values_) {
      if (type == RowType::kF16) x = static_cast<float>(HalfValue(NearestHalf(double{x})));
      if (type == RowType::kBf16) x = static_cast<float>(Bf16Value(UpperHalf(x)));
    }
  }
  // From the given token on, at the least alignment that the type has.
  std::vector<std::byte> As(RowType type) const {
    const size_t size = type == RowType::kF32 ? 4 : 2;
    std::vector<std::byte> bytes(values_.size() * size + size);
    for (size_t i = 0; i < values_.size(); ++i) {
      const uint16_t narrow = type == RowType::kF16 ? NearestHalf(double{values_[i]}) : UpperHalf(values_[i]);
      std::memcpy(&bytes[(i + 1) * size], type == RowType::kF32 ? static_cast<const void*>(&values_[i]) : &narrow,
                  size);
    }
    return bytes;
  }

 private:
  size_t At(int token, int head) const { return static_cast<size_t>((token * kKvHeads + head) * head_dim_); }
  int head_dim_;
  std::vector<float> values_;
};

// Numbers where the formats have their edges.
float Special(std::mt19937_64& random) {
  constexpr float kSpecial[] = {0.0f,     -0.0f,   65504.0f,  -65504.0f, 65519.996f, -65519.996f, 65520.0f,
                                70000.0f, -1e30f,  3.38e38f,  6e-8f,     -3e-8f,     2.9e-8f,     6.1e-5f,
                                1e-40f,   -1e-45f, 1.17e-38f, 1.0f,      2049.0f,    0.33325f};
  return kSpecial[random() % std::size(kSpecial)];
}

Rows Draw(int head_dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Rows rows(head_dim);
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int h = 0; h < kKvHeads; ++h) {
      const uint64_t kind = random() % 8;
      const float size = kind == 0 ? 0.0f : kind == 1 ? 1e-6f : kind == 2 ? 3e4f : 1.0f;
      for (int d = 0; d < head_dim; ++d) rows.row(t, h)[d] = kind == 3 ? Special(random) : normal(random) * size;
    }
  }
  return rows;
}

// Each element halfway between two steps of the quantisation, or beside it.
Rows DrawTies(int head_dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  Rows rows(head_dim);
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int h = 0; h < kKvHeads; ++h) {
      const float scale = static_cast<float>(128 + random() % 128) / 4096.0f;  // a bf16
      const int steps = h == 0 ? 127 : 8;
      for (int d = 0; d < head_dim; ++d) {
        float x = (static_cast<float>(random() % static_cast<uint64_t>(steps)) + 0.5f) * scale;
        for (uint64_t i = random() % 3; i > 0; --i) x = std::nextafterf(x, kInfinity);
        for (uint64_t i = random() % 3; i > 0; --i) x = std::nextafterf(x, 0);
        rows.row(t, h)[d] = random() % 2 == 0 ? x : -x;
      }
      for (int d = 0; d < head_dim; d += 32) rows.row(t, h)[d] = static_cast<float>(steps) * scale;
    }
  }
  return rows;
}

class Block {
 public:
  Block(const AttentionKernel& kernel, FormatPair formats, int head_dim)
      : kernel_(kernel),
        formats_(formats),
        codec_(CodecOf(kernel, formats.first, formats.second)),
        layout_(MakeLayout(codec_, kKvHeads, head_dim, kBlockTokens)),
        memory_(static_cast<size_t>(layout_.block_bytes() / 4), 0xffffffffu) {}

  int64_t Append(const Rows& keys, const Rows& values, RowType type, int token, int tokens, int head_begin = 0,
                 int head_end = kKvHeads) {
    const std::vector<std::byte> k = keys.As(type);
    const std::vector<std::byte> v = values.As(type);
    AppendParams p;
    p.layout = layout_;
    p.codec = &codec_;
    p.type = type;
    p.row_stride = kKvHeads * layout_.head_dim;
    const int64_t from = (1 + token * p.row_stride) * (type == RowType::kF32 ? 4 : 2);
    p.k = k.data() + from;
    p.v = v.data() + from;
    p.tokens = tokens;
    p.block = reinterpret_cast<std::byte*>(memory_.data());
    p.in_block = token;
    p.head_begin = head_begin;
    p.head_end = head_end;
    return kernels::Append(kernel_, p);
  }

  // [head][tile][K | V]
  const std::byte* KeyTile(int token, int head) const {
    const int64_t tile = head * (kBlockTokens / kTileTokens) + token / kTileTokens;
    return reinterpret_cast<const std::byte*>(memory_.data()) +
           tile *
               (StoredKeyBytes(formats_.first, layout_.head_dim) + StoredValueBytes(formats_.second, layout_.head_dim));
  }
  const std::byte* ValueTile(int token, int head) const {
    return KeyTile(token, head) + StoredKeyBytes(formats_.first, layout_.head_dim);
  }
  double Key(int token, int head, int d) const {
    return StoredKey(formats_.first, KeyTile(token, head), layout_.head_dim, token % kTileTokens, d);
  }
  double Value(int token, int head, int d) const {
    return StoredValue(formats_.second, ValueTile(token, head), layout_.head_dim, token % kTileTokens, d);
  }
  // The bits of all elements of a token.
  std::vector<uint64_t> Token(int token) const {
    std::vector<uint64_t> elements;
    for (int h = 0; h < kKvHeads; ++h) {
      for (int d = 0; d < layout_.head_dim; ++d) {
        elements.push_back(std::bit_cast<uint64_t>(Key(token, h, d)));
        elements.push_back(std::bit_cast<uint64_t>(Value(token, h, d)));
      }
    }
    return elements;
  }
  const std::vector<uint32_t>& memory() const { return memory_; }

 private:
  const AttentionKernel& kernel_;
  FormatPair formats_;
  KvCodec codec_;
  KvLayout layout_;
  std::vector<uint32_t> memory_;  // 4-byte aligned
};

std::string Where(const AttentionKernel& kernel, int head_dim, RowType type) {
  return std::string(kernel.name) + ", head_dim " + std::to_string(head_dim) + ", row type " +
         std::to_string(static_cast<int>(type));
}

class AppendContract : public PairTest {};

TEST_P(AppendContract, AllKernelsStoreTheSameBytes) {
  for (const int head_dim : kDims) {
    for (const bool ties : {false, true}) {
      for (const RowType type : {RowType::kF16, RowType::kBf16, RowType::kF32}) {
        const auto draw = [&](uint64_t seed) { return ties ? DrawTies(head_dim, seed) : Draw(head_dim, seed); };
        const Rows keys = draw(1), values = draw(2);
        Block right(*AttentionKernels()[0], GetParam(), head_dim);
        const int64_t beyond = right.Append(keys, values, type, 0, kBlockTokens);
        for (const AttentionKernel* kernel : RunnableKernels()) {
          Block block(*kernel, GetParam(), head_dim);
          EXPECT_EQ(block.Append(keys, values, type, 0, kBlockTokens), beyond) << Where(*kernel, head_dim, type);
          EXPECT_EQ(block.memory(), right.memory()) << Where(*kernel, head_dim, type);
        }
      }
    }
  }
}

// Finite numbers above the largest f16 become it and are counted; infinities and NaNs stay what they are.
TEST_P(AppendContract, OverflowIsCountedAndSaturated) {
  constexpr int kDim = 40;
  const float beyond[] = {65504.004f, -65519.996f, 65520.0f, -1e6f, 3e38f};
  for (const AttentionKernel* kernel : RunnableKernels()) {
    Rows keys(kDim), values(kDim);
    for (int i = 0; i < 5; ++i) keys.row(3, 1)[7 * i] = beyond[i];
    values.row(3, 0)[39] = 1e5f;
    values.row(3, 0)[0] = 65504.0f;
    keys.row(4, 0)[1] = kInfinity;
    values.row(4, 0)[2] = std::nanf("");
    Block block(*kernel, GetParam(), kDim);
    const auto [key_format, value_format] = GetParam();
    const int64_t right = (key_format == KvFormat::kF16 ? 5 : 0) + (value_format == KvFormat::kF16 ? 1 : 0);
    EXPECT_EQ(block.Append(keys, values, RowType::kF32, 0, kBlockTokens), right) << kernel->name;
    if (key_format == KvFormat::kF16) {
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(block.Key(3, 1, 7 * i), std::copysign(65504.0, double{beyond[i]}));
      }
      EXPECT_EQ(block.Key(4, 0, 1), double{kInfinity});
    }
    if (value_format == KvFormat::kF16) {
      EXPECT_EQ(block.Value(3, 0, 39), 65504.0);
    }
    // Not finite: the elements that share the scale are NaN, and no others.
    EXPECT_FALSE(std::isfinite(block.Key(4, 0, 1)));
    EXPECT_TRUE(std::isnan(block.Value(4, 0, 2)));
    EXPECT_EQ(std::isnan(block.Value(4, 0, 39)), value_format == KvFormat::kInt8);
    EXPECT_EQ(std::isnan(block.Key(4, 0, 0)), key_format >= KvFormat::kInt8);
    EXPECT_TRUE(std::isfinite(block.Key(4, 1, 1)) && std::isfinite(block.Value(5, 0, 2)));
  }
}

TEST_P(AppendContract, TheLargestF32IsFiniteInEachFormat) {
  for (const AttentionKernel* kernel : RunnableKernels()) {
    Rows rows(8);
    rows.row(0, 0)[0] = std::numeric_limits<float>::max();
    rows.row(0, 0)[1] = -std::numeric_limits<float>::max();
    Block block(*kernel, GetParam(), 8);
    block.Append(rows, rows, RowType::kF32, 0, 1);
    for (int d = 0; d < 2; ++d) {
      EXPECT_TRUE(std::isfinite(block.Key(0, 0, d))) << kernel->name << " " << block.Key(0, 0, d);
      EXPECT_TRUE(std::isfinite(block.Value(0, 0, d))) << kernel->name << " " << block.Value(0, 0, d);
    }
  }
}

// How far the stored element is from x, the scale group's largest magnitude being `largest`.
void ExpectNear(KvFormat format, double stored, double x, double scale, double largest) {
  constexpr double kSlack = 1 + 0x1p-20;  // x / scale is rounded to f32
  constexpr double kTiny = 0x1p-118;      // a scale is a normal number or 0
  if (format == KvFormat::kF16) {
    const double bounded = std::clamp(x, -65504.0, 65504.0);
    EXPECT_EQ(stored, HalfValue(NearestHalf(bounded)));
  } else if (format == KvFormat::kBf16) {
    EXPECT_LE(std::fabs(stored - x), 0x1p-8 * std::fabs(x) + 0x1p-134 + (largest > 3.38e38 ? 2e36 : 0));
  } else if (format == KvFormat::kInt8) {
    EXPECT_LE(std::fabs(stored - x), scale / 2 * kSlack + kTiny);
    EXPECT_LE(scale, largest / 127 * (1 + 0x1p-7) + 0x1p-126);
  } else {
    // The extreme is -8 steps; its negative would be 8, of which there are 7.
    const double steps = scale == 0 ? 0 : x / scale;
    EXPECT_LE(std::fabs(stored - x), std::fabs(scale) * std::max(0.5, steps - 7) * kSlack + kTiny);
    EXPECT_LE(std::fabs(scale), largest / 8 * (1 + 0x1p-7) + 0x1p-126);
  }
}

TEST_P(AppendContract, RoundTripStaysWithinTheFormatsStep) {
  const auto [key_format, value_format] = GetParam();
  for (const int head_dim : {8, 24, 64, 136}) {
    Rows rows = Draw(head_dim, 3);
    Block block(*AttentionKernels()[0], GetParam(), head_dim);
    block.Append(rows, rows, RowType::kF32, 0, kBlockTokens);
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int h = 0; h < kKvHeads; ++h) {
        const float* const row = rows.row(t, h);
        const auto largest = [&](KvFormat format, int d) {
          const int begin = format == KvFormat::kInt4 ? d / 32 * 32 : 0;
          const int end = format == KvFormat::kInt4 ? std::min(begin + 32, head_dim) : head_dim;
          double most = 0;
          for (int i = begin; i < end; ++i) most = std::max(most, std::fabs(double{row[i]}));
          return most;
        };
        for (int d = 0; d < head_dim; ++d) {
          SCOPED_TRACE("token " + std::to_string(t) + ", element " + std::to_string(d) + " of " +
                       std::to_string(head_dim));
          const int in_tile = t % kTileTokens;
          ExpectNear(key_format, block.Key(t, h, d), double{row[d]},
                     StoredKeyScale(key_format, block.KeyTile(t, h), head_dim, in_tile, d), largest(key_format, d));
          ExpectNear(value_format, block.Value(t, h, d), double{row[d]},
                     StoredValueScale(value_format, block.ValueTile(t, h), head_dim, in_tile, d),
                     largest(value_format, d));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Tokens in any order, one by one and head by head: the same bytes, and no other token's elements change.
TEST_P(AppendContract, ATokenLeavesTheOthersAlone) {
  for (const AttentionKernel* kernel : RunnableKernels()) {
    for (const int head_dim : {8, 48, 64}) {
      Rows keys = Draw(head_dim, 4), values = Draw(head_dim, 5);
      keys.RoundTo(RowType::kF16);
      values.RoundTo(RowType::kF16);
      Block whole(*kernel, GetParam(), head_dim), apart(*kernel, GetParam(), head_dim);
      whole.Append(keys, values, RowType::kF32, 0, kBlockTokens);
      std::vector<int> order(kBlockTokens);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937_64(6));
      std::vector<int> there;
      for (const int token : order) {
        apart.Append(keys, values, RowType::kF16, token, 1, 1, 2);
        apart.Append(keys, values, RowType::kF32, token, 1, 0, 1);
        there.push_back(token);
        const int one = there[there.size() * 5 / 7];
        for (const int other : {one, token ^ 1, token}) {
          if (std::find(there.begin(), there.end(), other) == there.end()) continue;
          ASSERT_EQ(apart.Token(other), whole.Token(other))
              << kernel->name << ", token " << other << " after " << token;
        }
      }
      EXPECT_EQ(apart.memory(), whole.memory()) << kernel->name << ", head_dim " << head_dim;
      // Again, over what is there.
      apart.Append(values, keys, RowType::kF16, 5, 3);
      apart.Append(keys, values, RowType::kF16, 5, 3);
      EXPECT_EQ(apart.memory(), whole.memory()) << kernel->name << ", head_dim " << head_dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, AppendContract, testing::ValuesIn(AllPairs()), PairName);

}  // namespace
}  // namespace fastdecode::kernels
