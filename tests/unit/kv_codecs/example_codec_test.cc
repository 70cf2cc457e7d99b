// docs/examples/kv_codec_e4m3.cc: what it stores, attention over it, and its way through
// the R-worker's AttentionService.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/base/logging.h"
#include "kernels/decode_attention.h"
#include "kernels/dispatch.h"
#include "kernels/f16.h"
#include "kernels/kv_codecs.h"
#include "rworker/message_handler.h"
#include "tests/unit/rworker/service_fixture.h"

namespace fastdecode::kernels {
namespace {

constexpr uint8_t kE4m3 = 64;

// OCP 8-bit floating point specification, table 2, in double precision.
double FromE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

double FromBf16(const std::byte* at) {
  uint16_t half = 0;
  std::memcpy(&half, at, 2);
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return double{value};
}

// One block of a few KV heads with random rows; read back by the layout that the example states.
class Block {
 public:
  Block(const AttentionKernel& kernel, KvCodes codes, int32_t kv_heads, int32_t head_dim, int32_t tokens)
      : codec_(CodecOf(kernel, codes)),
        layout_(kernels::MakeLayout(codec_, kv_heads, head_dim, 64)),
        bytes_(static_cast<size_t>(layout_.block_bytes()), std::byte{0xff}) {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    k_.resize(static_cast<size_t>(tokens * kv_heads * head_dim));
    v_.resize(k_.size());
    for (float& x : k_) x = normal(random);
    for (float& x : v_) x = normal(random);
    AppendParams params;
    params.layout = layout_;
    params.codec = &codec_;
    params.type = RowType::kF32;
    params.k = k_.data();
    params.v = v_.data();
    params.row_stride = int64_t{kv_heads} * head_dim;
    params.tokens = tokens;
    params.block = bytes_.data();
    params.head_end = kv_heads;
    EXPECT_EQ(Append(kernel, params), 0);
  }

  double Key(int32_t head, int32_t token, int32_t d) const {
    const int32_t t = token % kTileTokens;
    const std::byte* const tile = bytes_.data() + layout_.TileOffset(head, token);
    return FromE4m3(static_cast<uint8_t>(tile[d * kTileTokens + t])) * Scale(tile, t);
  }
  double Value(int32_t head, int32_t token, int32_t d) const {
    const int32_t t = token % kTileTokens;
    const std::byte* const tile = bytes_.data() + layout_.TileOffset(head, token) + layout_.key_tile_bytes;
    return FromE4m3(static_cast<uint8_t>(tile[t * layout_.head_dim + d])) * Scale(tile, t);
  }

  const KvCodec codec_;
  const KvLayout layout_;
  std::vector<std::byte> bytes_;
  std::vector<float> k_, v_;  // [tokens, kv_heads, head_dim]

 private:
  double Scale(const std::byte* tile, int32_t token) const {
    return FromBf16(tile + layout_.head_dim * kTileTokens + token * 2);
  }
};

TEST(ExampleCodec, StoresTheNearestE4m3) {
  const Block block(*AttentionKernels().front(), {kE4m3, kE4m3}, 2, 24, 50);
  for (int32_t token = 0; token < 50; ++token) {
    for (int32_t head = 0; head < 2; ++head) {
      const size_t row = static_cast<size_t>(token * 2 + head) * 24;
      const auto check = [&](const std::vector<float>& from, auto stored) {
        double largest = 0;
        for (size_t d = 0; d < 24; ++d) largest = std::max(largest, std::fabs(double{from[row + d]}));
        for (int32_t d = 0; d < 24; ++d) {
          const double x = double{from[row + static_cast<size_t>(d)]};
          // Half a unit of 3 bits of fraction; below 2^-6 of 448 half of 2^-9. The scale is up to 2^-7 too large.
          const double limit = std::max(std::fabs(x) / 16, largest / 448 * 1.01 / 1024);
          EXPECT_LE(std::fabs(stored(d) - x), limit * 1.0001) << token << " " << head << " " << d;
        }
      };
      check(block.k_, [&](int32_t d) { return block.Key(head, token, d); });
      check(block.v_, [&](int32_t d) { return block.Value(head, token, d); });
    }
  }
}

struct Case {
  int32_t kv_heads, group, head_dim, tokens, rows;
};

// O of `rows` query rows over the block's tokens, the last row being the last token.
std::vector<uint16_t> AttendTo(const AttentionKernel& kernel, const Block& block, const Case& c,
                               const std::vector<uint16_t>& q) {
  const uint32_t table[] = {0};
  std::vector<std::byte> scratch(
      static_cast<size_t>(AttendScratchBytes(block.codec_, c.kv_heads, c.group, c.rows, c.head_dim)) + 64);
  std::vector<uint16_t> out(q.size());
  AttendParams params;
  params.layout = block.layout_;
  params.codec = &block.codec_;
  params.options.group = c.group;
  params.options.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  params.blocks = block.bytes_.data();
  params.block_table = table;
  params.q = q.data();
  params.q_stride = params.out_stride = int64_t{c.kv_heads} * c.group * c.head_dim;
  params.rows = c.rows;
  params.first_position = c.tokens - c.rows;
  params.kv_head_end = c.kv_heads;
  params.token_end = c.tokens;
  params.out = out.data();
  params.scratch = scratch.data() + (-reinterpret_cast<uintptr_t>(scratch.data()) & 63);
  Attend(kernel, params);
  return out;
}

std::vector<uint16_t> Queries(const Case& c) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> q(static_cast<size_t>(c.rows * c.kv_heads * c.group * c.head_dim));
  for (uint16_t& x : q) x = FloatToHalf(normal(random));
  return q;
}

// The worst |O - reference|, the reference in double precision over what is stored.
double WorstError(const Block& block, const Case& c, const std::vector<uint16_t>& q, const std::vector<uint16_t>& out) {
  double worst = 0;
  for (int32_t vector = 0; vector < c.rows * c.kv_heads * c.group; ++vector) {
    const int32_t row = vector / (c.kv_heads * c.group);
    const int32_t head = vector % (c.kv_heads * c.group) / c.group;
    const size_t at = static_cast<size_t>(vector) * static_cast<size_t>(c.head_dim);
    const int32_t seen = c.tokens - c.rows + row + 1;
    std::vector<double> weights;
    double sum = 0;
    for (int32_t t = 0; t < seen; ++t) {
      double score = 0;
      for (int32_t d = 0; d < c.head_dim; ++d) {
        score += double{HalfToFloat(q[at + static_cast<size_t>(d)])} * block.Key(head, t, d);
      }
      weights.push_back(std::exp(score / std::sqrt(c.head_dim)));
      sum += weights.back();
    }
    for (int32_t d = 0; d < c.head_dim; ++d) {
      double right = 0;
      for (int32_t t = 0; t < seen; ++t) right += weights[static_cast<size_t>(t)] / sum * block.Value(head, t, d);
      worst = std::max(worst, std::fabs(right - double{HalfToFloat(out[at + static_cast<size_t>(d)])}));
    }
  }
  return worst;
}

TEST(ExampleCodec, AttentionOverWhatIsStoredIsExactWithEveryKernel) {
  const uint32_t features = DetectCpuFeatures();
  for (const AttentionKernel* kernel : AttentionKernels()) {
    if ((kernel->features & ~features) != 0) continue;
    for (const Case& c : {Case{1, 1, 8, 1, 1}, Case{2, 3, 24, 33, 1}, Case{1, 8, 64, 64, 1}, Case{3, 1, 128, 50, 4},
                          Case{1, 2, 256, 31, 3}}) {
      const Block block(*kernel, {kE4m3, kE4m3}, c.kv_heads, c.head_dim, c.tokens);
      const std::vector<uint16_t> q = Queries(c);
      // |O| is below 4: the last bit of an f16 there is 2^-9, and f32 sums are far finer.
      EXPECT_LT(WorstError(block, c, q, AttendTo(*kernel, block, c, q)), 0x1p-9) << kernel->name << " " << c.head_dim;
    }
  }
}

TEST(ExampleCodec, EitherSideMayBeABuiltInFormat) {
  const uint32_t features = DetectCpuFeatures();
  const Case c{2, 3, 64, 50, 1};
  const std::vector<uint16_t> q = Queries(c);
  for (const KvCodes codes : {KvCodes{kE4m3, 1}, KvCodes{kE4m3, 4}, KvCodes{3, kE4m3}}) {
    const Block plain(*AttentionKernels().front(), codes, c.kv_heads, c.head_dim, c.tokens);
    const std::vector<uint16_t> right = AttendTo(*AttentionKernels().front(), plain, c, q);
    for (const AttentionKernel* kernel : AttentionKernels()) {
      if ((kernel->features & ~features) != 0) continue;
      const Block block(*kernel, codes, c.kv_heads, c.head_dim, c.tokens);
      const std::vector<uint16_t> out = AttendTo(*kernel, block, c, q);
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_NEAR(HalfToFloat(out[i]), HalfToFloat(right[i]), 2e-3f) << kernel->name << " " << Describe(codes);
      }
    }
  }
}

}  // namespace
}  // namespace fastdecode::kernels

namespace fastdecode::rworker {
namespace {

struct E4m3Service {
  explicit E4m3Service(const AttentionShape& shape) {
    const auto kernel = kernels::ChooseAttentionKernel("auto", kernels::DetectCpuFeatures()).kernel;
    memory = *PoolMemory::Map(8 << 20, 0);
    auto created = AttentionService::Create(shape, kSmallLimits, &memory, kernel,
                                            kernels::CodecOf(*kernel, kernels::KvCodes{64, 64}), &pool);
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    service = std::move(*created);
  }
  ComputePool pool{2, /*pin=*/false};
  PoolMemory memory;
  std::unique_ptr<AttentionService> service;
};

constexpr AttentionShape kShape{.num_layers = 2, .num_heads = 4, .num_kv_heads = 2, .head_dim = 32};

// K and V are uniform in -2 .. 2: an E4M3 with its row's scale is off by up to 1/16 of itself.
TEST(ExampleCodecService, PrefillAndStepsAreNearTheRightAttention) {
  E4m3Service e4m3(kShape);
  ASSERT_TRUE(Prefill(*e4m3.service, 1, 100).ok());
  for (uint32_t position = 100; position < 140; ++position) {
    const StepOutput output = RunStep(*e4m3.service, 0, position, {{1, position, 0}});
    const std::vector<double> right = RightOutput(kShape, 1, position);
    double error = 0, power = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      const double difference = double{kernels::HalfToFloat(output.at(1)[i])} - right[i];
      error += difference * difference;
      power += right[i] * right[i];
    }
    EXPECT_LT(std::sqrt(error / power), 0.06);
  }
  EXPECT_EQ(e4m3.service->stats().beyond_range, 0);
}

// Infinities are beyond E4M3's range: they are stored as its largest value and counted, by
// prefill and by steps; rows stay finite.
TEST(ExampleCodecService, WhatIsBeyondTheRangeIsCounted) {
  E4m3Service e4m3(kShape);
  AttentionService& service = *e4m3.service;
  std::vector<uint16_t> row = QkvRow(kShape, 1, 0, 0);
  const auto k = static_cast<size_t>(kShape.q_width());
  row[k + 3] = 0x7c00;
  row[k + 40] = 0xfc00;
  row[k + static_cast<size_t>(kShape.kv_width())] = 0x7c00;
  for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE(service.AppendPrefill(1, layer, 0, 1, row.data() + k).ok());
  EXPECT_EQ(service.stats().beyond_range, 2 * 3);
  const std::vector<StepRow> rows = {{1, 1, 0}};
  ASSERT_TRUE(service.BeginStep(0, 1, rows).ok());
  std::vector<uint16_t> o(static_cast<size_t>(kShape.q_width()));
  AttendInfo info;
  ASSERT_TRUE(service.Attend(0, 1, 0, row.data(), 1, o.data(), &info).ok());
  EXPECT_EQ(service.stats().beyond_range, 3 * 3);
  for (const uint16_t x : o) EXPECT_TRUE(std::isfinite(kernels::HalfToFloat(x)));
}

class Warnings : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t length) override {
    if (severity == google::GLOG_WARNING) lines.emplace_back(message, length);
  }
  std::vector<std::string> lines;
};

TEST(ExampleCodecService, TheHeartbeatCountsOnAndTheLogWarnsOnce) {
  E4m3Service e4m3(kShape);
  SessionCounters counters;
  MessageHandler handler(e4m3.service.get(), &counters);
  const auto width = static_cast<size_t>(2 * kShape.kv_width());
  alignas(64) std::byte message[sizeof(MessageHeader) + 2 * 2 * 32 * 2] = {};
  ASSERT_EQ(sizeof(message), sizeof(MessageHeader) + width * 2);
  const auto append = [&](uint32_t position, uint16_t element) {
    MessageHeader header;
    header.type = static_cast<uint16_t>(MessageType::kKvAppend);
    header.sequence = 1;
    header.position = position;
    header.rows = 1;
    header.payload_bytes = static_cast<uint32_t>(width * 2);
    std::memcpy(message, &header, sizeof(header));
    std::memcpy(message + sizeof(header), &element, sizeof(element));
    const Status status = handler.Handle({Lane::kBulk, 0, message, 0, &header}, {});
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  Warnings warnings;
  append(0, 0x3c00);
  EXPECT_EQ(counters.Snapshot().kv_beyond_range, 0U);
  EXPECT_TRUE(warnings.lines.empty());
  for (uint32_t position = 1; position <= 5; ++position) append(position, 0x7c00);
  EXPECT_EQ(counters.Snapshot().kv_beyond_range, 5U);
  ASSERT_EQ(warnings.lines.size(), 1U);
  EXPECT_NE(warnings.lines[0].find("beyond the range of the cache's format (1 so far)"), std::string::npos);
}

}  // namespace
}  // namespace fastdecode::rworker
