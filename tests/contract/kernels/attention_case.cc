#include "attention_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <sstream>

#include "stored.h"

namespace fastdecode::kernels {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;
constexpr uint16_t kUntouched = 0x1234;
constexpr int kGap = 3;  // elements between two rows of q and of out

// Just as large as it was asked for, so that a sanitizer sees a step too far; full of NaNs.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), memory_(new (std::align_val_t{64}) std::byte[bytes_]) {
    std::memset(memory_, 0xff, bytes_);
  }
  ~Scratch() { ::operator delete[](memory_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return memory_; }

 private:
  size_t bytes_;
  std::byte* memory_;
};

float NaN() { return std::numeric_limits<float>::quiet_NaN(); }

}  // namespace

std::string Describe(const CaseSpec& s) {
  std::ostringstream text;
  text << "keys " << KvFormatName(s.keys) << ", values " << KvFormatName(s.values) << ", kv heads " << s.num_kv_heads
       << ", group " << s.group << ", head_dim " << s.head_dim << ", length " << s.length << ", block_tokens "
       << s.block_tokens << ", rows " << s.rows << " from " << s.first_position << ", window " << s.window
       << ", sink tokens " << s.sink_tokens << ", soft cap " << s.soft_cap << ", sink logits " << s.sink_logits;
  return text.str();
}

std::vector<const AttentionKernel*> RunnableKernels() {
  std::vector<const AttentionKernel*> runnable;
  for (const AttentionKernel* kernel : AttentionKernels()) {
    if ((kernel->features & ~DetectCpuFeatures()) == 0) runnable.push_back(kernel);
  }
  return runnable;
}

AttentionCase::AttentionCase(const CaseSpec& spec, uint64_t seed)
    : scale(static_cast<float>(1 / std::sqrt(spec.head_dim))), spec_(spec), random_(seed) {
  std::normal_distribution<double> normal;
  const auto fill = [&](std::vector<uint16_t>& to, int64_t count, float deviation) {
    to.resize(static_cast<size_t>(count));
    for (uint16_t& x : to) x = NearestHalf(normal(random_) * double{deviation});
  };
  const int64_t kv = int64_t{spec.length} * spec.num_kv_heads * spec.head_dim;
  fill(q, int64_t{spec.rows} * num_heads() * spec.head_dim, spec.q_deviation);
  fill(k, kv, spec.k_deviation);
  fill(v, kv, spec.v_deviation);
  if (spec.sink_logits) {
    for (int h = 0; h < num_heads(); ++h) sink_logits.push_back(static_cast<float>(2 * normal(random_)));
  }
}

void AttentionCase::Cache(int misalignment) {
  const AttentionKernel& reference = *AttentionKernels()[0];
  const KvCodec codec = CodecOf(reference, spec_.keys, spec_.values);
  const int blocks = (spec_.length + spec_.block_tokens - 1) / spec_.block_tokens;
  const int pool_blocks = blocks + 2;
  AppendParams p;
  p.layout = MakeLayout(codec, spec_.num_kv_heads, spec_.head_dim, spec_.block_tokens);
  p.codec = &codec;
  p.row_stride = int64_t{spec_.num_kv_heads} * spec_.head_dim;
  p.head_end = spec_.num_kv_heads;
  // Of ones: NaN in each format, in a scale as in an element.
  pool_.assign(static_cast<size_t>(pool_blocks * p.layout.block_bytes() + 64 + misalignment), std::byte{0xff});
  pool_offset_ = (-reinterpret_cast<uintptr_t>(pool_.data()) & 63) + static_cast<size_t>(misalignment);
  table_.resize(static_cast<size_t>(pool_blocks));
  for (size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<uint32_t>(i);
  std::shuffle(table_.begin(), table_.end(), random_);
  table_.resize(static_cast<size_t>(blocks));
  for (int t = 0; t < spec_.length; t += p.tokens) {
    p.tokens = std::min(spec_.block_tokens, spec_.length - t);
    p.k = k.data() + KvAt(t, 0);
    p.v = v.data() + KvAt(t, 0);
    p.block =
        pool_.data() + pool_offset_ + table_[static_cast<size_t>(t / spec_.block_tokens)] * p.layout.block_bytes();
    Append(reference, p);
  }
}

AttendParams AttentionCase::Params(const KvCodec& codec, const std::vector<uint16_t>& query) const {
  AttendParams p;
  p.layout = MakeLayout(codec, spec_.num_kv_heads, spec_.head_dim, spec_.block_tokens);
  p.codec = &codec;
  p.options.group = spec_.group;
  p.options.scale = scale;
  p.options.soft_cap = spec_.soft_cap;
  p.options.window = spec_.window;
  p.options.sink_tokens = spec_.sink_tokens;
  p.options.sink_logits = sink_logits.empty() ? nullptr : sink_logits.data();
  p.blocks = pool_.data() + pool_offset_;
  p.block_table = table_.data();
  p.q = query.data() + 1;
  p.q_stride = num_heads() * spec_.head_dim + kGap;
  p.out_stride = p.q_stride;
  p.rows = spec_.rows;
  p.first_position = first_position();
  p.token_end = spec_.length;
  return p;
}

void AttentionCase::AttendHeads(const AttentionKernel& kernel, AttendParams& p, int kv_heads) const {
  const int step = kv_heads == 0 ? spec_.num_kv_heads : kv_heads;
  for (p.kv_head_begin = 0; p.kv_head_begin < spec_.num_kv_heads; p.kv_head_begin = p.kv_head_end) {
    p.kv_head_end = std::min(p.kv_head_begin + step, spec_.num_kv_heads);
    const Scratch scratch(
        AttendScratchBytes(*p.codec, p.kv_head_end - p.kv_head_begin, spec_.group, spec_.rows, spec_.head_dim));
    p.scratch = scratch.get();
    kernels::Attend(kernel, p);
  }
}

namespace {

// Rows of `width` at an odd address, kGap elements apart, with one more before the first.
std::vector<uint16_t> Spread(const std::vector<uint16_t>& rows, size_t width) {
  std::vector<uint16_t> spread(1, 0x7e00);
  for (size_t from = 0; from < rows.size(); from += width) {
    spread.insert(spread.end(), rows.begin() + static_cast<std::ptrdiff_t>(from),
                  rows.begin() + static_cast<std::ptrdiff_t>(from + width));
    if (from + width < rows.size()) spread.insert(spread.end(), kGap, 0x7e00);
  }
  return spread;
}

// The rows of such a buffer; nothing else was touched.
std::vector<uint16_t> Gather(const std::vector<uint16_t>& spread, size_t width) {
  std::vector<uint16_t> rows;
  EXPECT_EQ(spread[0], kUntouched);
  for (size_t from = 1; from < spread.size(); from += width) {
    const auto begin = spread.begin() + static_cast<std::ptrdiff_t>(from);
    rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    for (size_t i = 0; i < kGap && from + width < spread.size(); ++i, ++from) {
      EXPECT_EQ(spread[from + width], kUntouched) << "between rows";
    }
  }
  return rows;
}

}  // namespace

Output AttentionCase::Attend(const AttentionKernel& kernel, int kv_heads) const {
  const size_t width = static_cast<size_t>(num_heads() * spec_.head_dim);
  const std::vector<uint16_t> query = Spread(q, width);
  std::vector<uint16_t> out(query.size(), kUntouched);
  Output output;
  output.lse.assign(static_cast<size_t>(spec_.rows * num_heads()), NaN());
  const KvCodec codec = CodecOf(kernel, spec_.keys, spec_.values);
  AttendParams p = Params(codec, query);
  p.out = out.data() + 1;
  p.lse = output.lse.data();
  AttendHeads(kernel, p, kv_heads);
  output.out = Gather(out, width);
  return output;
}

Partials AttentionCase::AttendRanges(const AttentionKernel& kernel, int range_tokens, int kv_heads) const {
  const size_t width = static_cast<size_t>(num_heads() * spec_.head_dim);
  const size_t heads = static_cast<size_t>(spec_.rows * num_heads());
  const std::vector<uint16_t> query = Spread(q, width);
  const KvCodec codec = CodecOf(kernel, spec_.keys, spec_.values);
  AttendParams p = Params(codec, query);
  Partials partials;
  partials.ranges = (spec_.length + range_tokens - 1) / range_tokens;
  const auto ranges = static_cast<size_t>(partials.ranges);
  partials.acc.assign(ranges * heads * static_cast<size_t>(spec_.head_dim), NaN());
  partials.max.assign(ranges * heads, NaN());
  partials.sum.assign(ranges * heads, NaN());
  for (int r = partials.ranges - 1; r >= 0; --r) {
    const size_t at = static_cast<size_t>(r) * heads;
    p.token_begin = r * range_tokens;
    p.token_end = std::min(spec_.length, (r + 1) * range_tokens);
    p.partial_acc = partials.acc.data() + at * static_cast<size_t>(spec_.head_dim);
    p.partial_max = partials.max.data() + at;
    p.partial_sum = partials.sum.data() + at;
    AttendHeads(kernel, p, kv_heads);
  }
  return partials;
}

Output AttentionCase::Merge(const AttentionKernel& kernel, const Partials& partials) const {
  const size_t width = static_cast<size_t>(num_heads() * spec_.head_dim);
  std::vector<uint16_t> out(Spread(q, width).size(), kUntouched);
  Output output;
  output.lse.assign(static_cast<size_t>(spec_.rows * num_heads()), NaN());
  MergeParams m;
  m.num_ranges = partials.ranges;
  m.rows = spec_.rows;
  m.num_heads = num_heads();
  m.head_dim = spec_.head_dim;
  m.sink_logits = sink_logits.empty() ? nullptr : sink_logits.data();
  m.partial_acc = partials.acc.data();
  m.partial_max = partials.max.data();
  m.partial_sum = partials.sum.data();
  m.out = out.data() + 1;
  m.out_stride = static_cast<int64_t>(width) + kGap;
  m.lse = output.lse.data();
  for (m.head_begin = 0; m.head_begin < m.num_heads; m.head_begin = m.head_end) {  // a KV head at a time
    m.head_end = m.head_begin + spec_.group;
    kernels::Merge(kernel, m);
  }
  output.out = Gather(out, width);
  return output;
}

std::vector<RightRow> AttentionCase::Right() const {
  const size_t count = k.size();
  std::vector<double> keys(count), values(count), query(q.size());
  const int64_t key_bytes = StoredKeyBytes(spec_.keys, spec_.head_dim);
  const int64_t tile_bytes = key_bytes + StoredValueBytes(spec_.values, spec_.head_dim);
  const int64_t tiles = spec_.block_tokens / kTileTokens;
  for (int t = 0; t < spec_.length; ++t) {
    const int in_block = t % spec_.block_tokens;
    for (int h = 0; h < spec_.num_kv_heads; ++h) {
      // [block][num_kv_heads][tiles][K tile | V tile]
      const int64_t block = table_[static_cast<size_t>(t / spec_.block_tokens)];
      const int64_t tile = (block * spec_.num_kv_heads + h) * tiles + in_block / kTileTokens;
      const std::byte* const at = pool_.data() + pool_offset_ + tile * tile_bytes;
      for (int d = 0; d < spec_.head_dim; ++d) {
        keys[KvAt(t, h, d)] = StoredKey(spec_.keys, at, spec_.head_dim, in_block % kTileTokens, d);
        values[KvAt(t, h, d)] = StoredValue(spec_.values, at + key_bytes, spec_.head_dim, in_block % kTileTokens, d);
      }
    }
  }
  for (size_t i = 0; i < q.size(); ++i) query[i] = HalfValue(q[i]);
  std::vector<RightRow> right;
  for (int row = 0; row < spec_.rows; ++row) {
    for (int h = 0; h < num_heads(); ++h) {
      RowQuestion r;
      r.head_dim = spec_.head_dim;
      r.position = first_position() + row;
      r.length = spec_.length;
      r.window = spec_.window;
      r.sink_tokens = spec_.sink_tokens;
      r.scale = double{scale};
      r.soft_cap = double{spec_.soft_cap};
      r.sink_logit = sink_logits.empty() ? nullptr : &sink_logits[static_cast<size_t>(h)];
      r.q = query.data() + At(row, h);
      r.k = keys.data() + KvAt(0, h / spec_.group);
      r.v = values.data() + KvAt(0, h / spec_.group);
      r.stride = int64_t{spec_.num_kv_heads} * spec_.head_dim;
      right.push_back(AnswerRow(r));
    }
  }
  return right;
}

// An f16 row is the rounding of something within the bound.
void AttentionCase::CheckOutput(const Output& output, const std::vector<RightRow>& right, const Bound& bound) const {
  for (size_t i = 0; i < right.size(); ++i) {
    for (int d = 0; d < spec_.head_dim; ++d) {
      const double value = right[i].values[static_cast<size_t>(d)];
      const double off = bound.value(right[i], d);
      const double got = HalfValue(output.out[i * static_cast<size_t>(spec_.head_dim) + static_cast<size_t>(d)]);
      ASSERT_GE(got, HalfValue(NearestHalf(value - off))) << "row and head " << i << ", element " << d << ": " << value;
      ASSERT_LE(got, HalfValue(NearestHalf(value + off))) << "row and head " << i << ", element " << d << ": " << value;
    }
    ASSERT_NEAR(double{output.lse[i]}, right[i].lse, bound.lse(right[i])) << "row and head " << i;
  }
}

// Joined in double precision: what the kernel did, without a rounding to f16.
void AttentionCase::CheckPartials(const Partials& p, const std::vector<RightRow>& right, const Bound& bound) const {
  const size_t dim = static_cast<size_t>(spec_.head_dim);
  for (size_t i = 0; i < right.size(); ++i) {
    const int head = static_cast<int>(i) % num_heads();
    double max = sink_logits.empty() ? -1e300 : double{sink_logits[static_cast<size_t>(head)]} * kLog2E;
    double sum = 0;
    for (size_t r = 0; r < static_cast<size_t>(p.ranges); ++r) max = std::max(max, double{p.max[r * right.size() + i]});
    if (!sink_logits.empty()) sum = std::exp2(double{sink_logits[static_cast<size_t>(head)]} * kLog2E - max);
    std::vector<double> acc(dim);
    for (size_t r = 0; r < static_cast<size_t>(p.ranges); ++r) {
      const size_t at = r * right.size() + i;
      const double factor = std::exp2(double{p.max[at]} - max);
      sum += factor * double{p.sum[at]};
      for (size_t d = 0; d < dim; ++d) acc[d] += factor * double{p.acc[at * dim + d]};
    }
    for (size_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(acc[d] / sum, right[i].values[d], bound.value(right[i], static_cast<int>(d)))
          << "partial results, row and head " << i << ", element " << d;
    }
    ASSERT_NEAR((max + std::log2(sum)) * kLn2, right[i].lse, bound.lse(right[i])) << "row and head " << i;
  }
}

void AttentionCase::CheckKernel(const AttentionKernel& kernel, const std::vector<RightRow>& right,
                                int range_tokens) const {
  SCOPED_TRACE(std::string(kernel.name) + ", range " + std::to_string(range_tokens) + ", " + Describe(spec_));
  const Bound bound = BoundOf(kernel, {spec_.keys, spec_.values, spec_.rows * spec_.group, spec_.head_dim, spec_.length,
                                       double{spec_.soft_cap}});
  CheckOutput(Attend(kernel), right, bound);
  const int whole = (spec_.length + kTileTokens - 1) / kTileTokens * kTileTokens;
  const Partials partials = AttendRanges(kernel, range_tokens == 0 ? whole : range_tokens);
  CheckPartials(partials, right, bound);
  CheckOutput(Merge(kernel, partials), right, bound);
}

void AttentionCase::Check(int range_tokens) const {
  const std::vector<RightRow> right = Right();
  for (const AttentionKernel* kernel : RunnableKernels()) {
    CheckKernel(*kernel, right, range_tokens);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace fastdecode::kernels
