// An AttentionService with made-up rows, and the right O in double precision.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "fake_nodes.h"
#include "kernels/f16.h"
#include "rworker/attention_service.h"

namespace fastdecode::rworker {

inline constexpr SessionLimits kSmallLimits{
    .block_tokens = 32, .max_context = 2048, .max_sequences = 16, .max_rows = 16, .max_mini_batches = 2};

// What a test's cache holds and which kernel works on it.
struct TestKernel {
  const kernels::AttentionKernel* kernel = kernels::ChooseAttentionKernel("auto", kernels::DetectCpuFeatures()).kernel;
  kernels::KvFormat keys = kernels::KvFormat::kF16;
  kernels::KvFormat values = kernels::KvFormat::kF16;
  kernels::KvCodec codec() const { return kernels::CodecOf(*kernel, keys, values); }
};

struct TestService {
  // `nodes`: pretended NUMA nodes, over which threads and blocks are spread.
  TestService(const AttentionShape& shape, const SessionLimits& limits, int threads = 1, int64_t blocks = 512,
              int nodes = 1, const TestKernel& kernel = {})
      : pool(threads, FakeNodes(nodes), /*pin=*/false) {
    const KvGeometry geometry{shape, limits.block_tokens, limits.max_context, limits.max_sequences, kernel.codec()};
    PoolOptions options;
    options.bytes = blocks * geometry.block_bytes();
    options.topology = FakeNodes(nodes);
    auto mapped = PoolMemory::Map(options);
    EXPECT_TRUE(mapped.ok());
    memory = std::move(*mapped);
    auto created = AttentionService::Create(shape, limits, &memory, kernel.kernel, kernel.codec(), &pool);
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    service = std::move(*created);
  }
  AttentionService* operator->() { return service.get(); }

  ComputePool pool;
  PoolMemory memory;
  std::unique_ptr<AttentionService> service;
};

// f16 numbers that depend on (sequence, layer, token) alone, so that every test and every
// worker gets the same rows for a sequence.
inline std::vector<uint16_t> QkvRow(const AttentionShape& shape, uint64_t sequence, int layer, int64_t token) {
  std::mt19937_64 random(sequence * 1000003 + static_cast<uint64_t>(layer) * 7919 + static_cast<uint64_t>(token));
  std::vector<uint16_t> row(static_cast<size_t>(shape.qkv_width()));
  for (uint16_t& x : row) {
    x = kernels::FloatToHalf(static_cast<float>(static_cast<int64_t>(random() % 4001) - 2000) / 1000.0f);
  }
  return row;
}

// Sends tokens [begin, end) of every layer as a prefill in pieces of `piece` rows.
inline Status Prefill(AttentionService& service, uint64_t sequence, int64_t tokens, int64_t piece = 37) {
  const AttentionShape& shape = service.shape();
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int64_t begin = 0; begin < tokens; begin += piece) {
      const int64_t rows = std::min(piece, tokens - begin);
      std::vector<uint16_t> kv;
      for (int64_t t = begin; t < begin + rows; ++t) {
        const std::vector<uint16_t> row = QkvRow(shape, sequence, layer, t);
        kv.insert(kv.end(), row.begin() + shape.q_width(), row.end());
      }
      FD_RETURN_IF_ERROR(service.AppendPrefill(sequence, layer, begin, rows, kv.data()));
    }
  }
  return service.FinishPrefill(sequence, tokens);
}

// One step over all layers. O by sequence: [num_layers, q_width].
using StepOutput = std::map<uint64_t, std::vector<uint16_t>>;
inline StepOutput RunStep(AttentionService& service, int mini_batch, uint64_t step, const std::vector<StepRow>& rows) {
  const AttentionShape& shape = service.shape();
  StepOutput output;
  const Status begun = service.BeginStep(mini_batch, step, rows);
  EXPECT_TRUE(begun.ok()) << begun.ToString();
  for (int layer = 0; begun.ok() && layer < shape.num_layers; ++layer) {
    std::vector<uint16_t> qkv;
    for (const StepRow& row : rows) {
      const std::vector<uint16_t> one = QkvRow(shape, row.sequence, layer, row.position);
      qkv.insert(qkv.end(), one.begin(), one.end());
    }
    std::vector<uint16_t> o(rows.size() * static_cast<size_t>(shape.q_width()));
    AttendInfo info;
    const Status attended =
        service.Attend(mini_batch, step, layer, qkv.data(), static_cast<int64_t>(rows.size()), o.data(), &info);
    EXPECT_TRUE(attended.ok()) << attended.ToString();
    int64_t context = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      context += rows[i].position + 1;
      std::vector<uint16_t>& all = output[rows[i].sequence];
      const auto from = o.begin() + static_cast<std::ptrdiff_t>(i) * shape.q_width();
      all.insert(all.end(), from, from + shape.q_width());
    }
    EXPECT_EQ(info.context_tokens, context);
    EXPECT_GT(info.compute_ns, 0);
  }
  return output;
}

// O of token `position` in double precision: [num_layers, q_width].
inline std::vector<double> RightOutput(const AttentionShape& shape, uint64_t sequence, int64_t position) {
  std::vector<double> output;
  const int group = shape.num_heads / shape.num_kv_heads;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    std::vector<std::vector<uint16_t>> rows;
    for (int64_t t = 0; t <= position; ++t) rows.push_back(QkvRow(shape, sequence, layer, t));
    for (int head = 0; head < shape.num_heads; ++head) {
      const auto at = [&](int64_t t, int64_t offset) {
        return double{kernels::HalfToFloat(rows[static_cast<size_t>(t)][static_cast<size_t>(offset)])};
      };
      const int64_t q = int64_t{head} * shape.head_dim;
      const int64_t k = shape.q_width() + int64_t{head / group} * shape.head_dim;
      std::vector<double> weights;
      double sum = 0;
      for (int64_t t = 0; t <= position; ++t) {
        double score = 0;
        for (int d = 0; d < shape.head_dim; ++d) score += at(position, q + d) * at(t, k + d);
        weights.push_back(std::exp(score / std::sqrt(shape.head_dim)));  // scores are small: no maximum needed
        sum += weights.back();
      }
      for (int d = 0; d < shape.head_dim; ++d) {
        double value = 0;
        for (int64_t t = 0; t <= position; ++t) {
          value += weights[static_cast<size_t>(t)] / sum * at(t, k + shape.kv_width() + d);
        }
        output.push_back(value);
      }
    }
  }
  return output;
}

}  // namespace fastdecode::rworker
