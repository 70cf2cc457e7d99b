#include "rworker/self_test/kernel_check.h"

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/f16.h"
#include "rworker/attention_service.h"

namespace fastdecode::rworker {
namespace {

constexpr auto kF16 = kernels::KvFormat::kF16;
constexpr AttentionShape kShapes[] = {{1, 4, 4, 128}, {1, 8, 2, 64}, {1, 7, 1, 80}};
// Around the edges of vectors and blocks (32), and one of several ranges.
constexpr int kLengths[] = {1, 31, 32, 33, 100, 1100};
// Both end in f16, which keeps 11 bits; sums are taken in another order.
constexpr float kRelative = 2e-3f;
constexpr float kAbsolute = 1e-3f;

std::vector<uint16_t> RandomRows(int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows(static_cast<size_t>(elements));
  for (uint16_t& x : rows) x = kernels::FloatToHalf(normal(random));
  return rows;
}

// O of the last token of one sequence a length.
Result<std::vector<uint16_t>> Attend(const AttentionShape& shape, const kernels::AttentionKernel& kernel) {
  constexpr auto kRows = static_cast<int32_t>(std::size(kLengths));
  const SessionLimits limits{
      .block_tokens = 32, .max_context = 1200, .max_sequences = kRows, .max_rows = kRows, .max_mini_batches = 1};
  ComputePool pool(1, /*pin=*/false);
  FD_ASSIGN_OR_RETURN(PoolMemory memory, PoolMemory::Map(int64_t{16} << 20, 0));
  FD_ASSIGN_OR_RETURN(
      std::unique_ptr<AttentionService> service,
      AttentionService::Create(shape, limits, &memory, &kernel, kernels::CodecOf(kernel, kF16, kF16), &pool));
  std::vector<StepRow> rows;
  for (const int length : kLengths) {
    const auto sequence = static_cast<uint64_t>(length);
    if (length > 1) {
      const std::vector<uint16_t> kv = RandomRows((length - 1) * 2 * shape.kv_width(), sequence);
      FD_RETURN_IF_ERROR(service->AppendPrefill(sequence, 0, 0, length - 1, kv.data()));
    }
    rows.push_back({sequence, static_cast<uint32_t>(length - 1), 0});
  }
  FD_RETURN_IF_ERROR(service->BeginStep(0, 0, rows));
  const std::vector<uint16_t> qkv = RandomRows(kRows * shape.qkv_width(), 1);
  std::vector<uint16_t> o(static_cast<size_t>(kRows * shape.q_width()));
  AttendInfo info;
  FD_RETURN_IF_ERROR(service->Attend(0, 0, 0, qkv.data(), kRows, o.data(), &info));
  return o;
}

}  // namespace

Status CheckKernel(const kernels::AttentionKernel& kernel) {
  const kernels::AttentionKernel& reference = *kernels::AttentionKernels().front();
  for (const AttentionShape& shape : kShapes) {
    FD_ASSIGN_OR_RETURN(const std::vector<uint16_t> right, Attend(shape, reference));
    FD_ASSIGN_OR_RETURN(const std::vector<uint16_t> found, Attend(shape, kernel));
    for (size_t i = 0; i < right.size(); ++i) {
      const float expected = kernels::HalfToFloat(right[i]);
      const float actual = kernels::HalfToFloat(found[i]);
      if (std::fabs(actual - expected) <= kAbsolute + kRelative * std::fabs(expected)) continue;
      const auto row = static_cast<int64_t>(i) / shape.q_width();
      return DataLoss("it computes " + std::to_string(actual) + " where " + std::string(reference.name) + " has " +
                      std::to_string(expected) + " (" + std::to_string(shape.num_heads) + " heads, " +
                      std::to_string(shape.num_kv_heads) + " KV heads, head_dim " + std::to_string(shape.head_dim) +
                      ", context " + std::to_string(kLengths[row]) + ")");
    }
  }
  return OkStatus();
}

}  // namespace fastdecode::rworker
