#include "kernels/kernel_check.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/decode_attention.h"
#include "kernels/dispatch.h"
#include "kernels/f16.h"

namespace fastdecode::kernels {
namespace {

struct Shape {
  int32_t num_kv_heads;
  int32_t group;
  int32_t head_dim;
};
// The first has vectors enough for AMX's tiles in every format (amx/amx_ops.h).
constexpr Shape kShapes[] = {{1, 9, 64}, {2, 1, 80}, {1, 3, 24}};
constexpr int32_t kBlockTokens = kTileTokens;
// One token, one more than a tile, and some tiles in each of two ranges.
constexpr int32_t kLengths[] = {1, kTileTokens + 1, 150};
constexpr int32_t kRange = 64;
// Both end in f16, which keeps 11 bits; sums are taken in another order.
constexpr float kRelative = 2e-3f;
constexpr float kAbsolute = 1e-3f;

// Numbers of both signs that look like nothing in particular, most of them below 2.
std::vector<float> Numbers(int64_t count, uint32_t seed) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) {
    float sum = 0;
    for (int i = 0; i < 4; ++i)
      sum += static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 16) / 65536.0f - 0.5f;
    x = 1.7f * sum;
  }
  return numbers;
}

// A sequence's cache, its blocks in reverse order.
struct Cache {
  Cache(const AttentionKernel& kernel, const KvCodec& codec, const Shape& shape, int32_t length)
      : layout(MakeLayout(codec, shape.num_kv_heads, shape.head_dim, kBlockTokens)) {
    const int32_t blocks = (length + kBlockTokens - 1) / kBlockTokens;
    pool.resize(static_cast<size_t>(blocks * layout.block_bytes()));
    for (int32_t b = blocks; b > 0; --b) table.push_back(static_cast<uint32_t>(b - 1));
    const int32_t kv_width = shape.num_kv_heads * shape.head_dim;
    const std::vector<float> rows = Numbers(int64_t{2} * kv_width * length, 1);
    for (int32_t t = 0; t < length; ++t) {
      AppendParams append;
      append.layout = layout;
      append.codec = &codec;
      append.type = RowType::kF32;
      append.k = rows.data() + int64_t{2} * t * kv_width;
      append.v = rows.data() + (int64_t{2} * t + 1) * kv_width;
      append.block = pool.data() + table[static_cast<size_t>(t / kBlockTokens)] * layout.block_bytes();
      append.in_block = t % kBlockTokens;
      append.head_end = shape.num_kv_heads;
      Append(kernel, append);
    }
  }
  KvLayout layout;
  std::vector<std::byte> pool;
  std::vector<uint32_t> table;
};

// O of the last of `length` tokens, the context cut every `range` tokens.
std::vector<uint16_t> Output(const AttentionKernel& kernel, KvFormat format, const Shape& shape, int32_t length,
                             int32_t range) {
  const KvCodec codec = CodecOf(kernel, format, format);
  const Cache cache(kernel, codec, shape, length);
  const int32_t heads = shape.num_kv_heads * shape.group;
  const int32_t width = heads * shape.head_dim;
  std::vector<uint16_t> q, out(static_cast<size_t>(width));
  for (const float x : Numbers(width, 2)) q.push_back(FloatToHalf(x));
  const int32_t ranges = (length + range - 1) / range;
  std::vector<float> acc(static_cast<size_t>(ranges * width)), max(static_cast<size_t>(ranges * heads)),
      sum(max.size());
  std::vector<std::byte> scratch(
      static_cast<size_t>(AttendScratchBytes(codec, shape.num_kv_heads, shape.group, 1, shape.head_dim)) + 64);
  AttendParams attend;
  attend.layout = cache.layout;
  attend.codec = &codec;
  attend.options.group = shape.group;
  attend.options.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  attend.blocks = cache.pool.data();
  attend.block_table = cache.table.data();
  attend.q = q.data();
  attend.first_position = length - 1;
  attend.kv_head_end = shape.num_kv_heads;
  attend.scratch = scratch.data() + (-reinterpret_cast<uintptr_t>(scratch.data()) & 63);
  for (int32_t r = 0; r < ranges; ++r) {
    attend.token_begin = r * range;
    attend.token_end = length - attend.token_begin < range ? length : attend.token_begin + range;
    if (ranges == 1) attend.out = out.data();
    attend.partial_acc = acc.data() + r * width;
    attend.partial_max = max.data() + r * heads;
    attend.partial_sum = sum.data() + r * heads;
    Attend(kernel, attend);
  }
  if (ranges == 1) return out;
  MergeParams merge;
  merge.num_ranges = ranges;
  merge.num_heads = heads;
  merge.head_dim = shape.head_dim;
  merge.head_end = heads;
  merge.partial_acc = acc.data();
  merge.partial_max = max.data();
  merge.partial_sum = sum.data();
  merge.out = out.data();
  Merge(kernel, merge);
  return out;
}

}  // namespace

std::string FaultOfKernel(const AttentionKernel& kernel) {
  const AttentionKernel& reference = *AttentionKernels().front();
  for (const Shape& shape : kShapes) {
    for (const int32_t length : kLengths) {
      for (int f = 0; f < kKvFormats; ++f) {
        const auto format = static_cast<KvFormat>(f);
        const std::vector<uint16_t> right = Output(reference, format, shape, length, length);
        const std::vector<uint16_t> found = Output(kernel, format, shape, length, kRange);
        for (size_t i = 0; i < right.size(); ++i) {
          const float expected = HalfToFloat(right[i]);
          const float actual = HalfToFloat(found[i]);
          if (std::fabs(actual - expected) <= kAbsolute + kRelative * std::fabs(expected)) continue;
          return "attention kernel " + std::string(kernel.name) + " computes " + std::to_string(actual) + " where " +
                 std::string(reference.name) + " has " + std::to_string(expected) + " (" +
                 std::string(KvFormatName(format)) + ", " + std::to_string(shape.num_kv_heads) + " KV heads, " +
                 std::to_string(shape.group) + " query heads each, head_dim " + std::to_string(shape.head_dim) +
                 ", context " + std::to_string(length) + ")";
        }
      }
    }
  }
  return "";
}

}  // namespace fastdecode::kernels
