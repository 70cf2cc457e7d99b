#include "sworker/model/sampler.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "sworker/model/draw.h"
#include "sworker/model/philox.h"

namespace fastdecode {
namespace {

using RowIndices = std::vector<int64_t>;

at::Tensor ToDevice(const RowIndices& rows, const at::Tensor& like) {
  return at::from_blob(const_cast<int64_t*>(rows.data()), {static_cast<int64_t>(rows.size())}, at::kLong)
      .clone()
      .to(like.device());
}

float Uniform(const SamplingRow& row) { return PhiloxUniform(row.params->seed, row.position); }

void DrawRandomRows(const at::Tensor& logits, std::span<const SamplingRow> rows, const RowIndices& which,
                    at::Tensor& ids) {
  if (logits.is_cpu()) {
    const auto vocab = static_cast<size_t>(logits.size(1));
    const float* data = logits.const_data_ptr<float>();
    int64_t* out = ids.mutable_data_ptr<int64_t>();
    for (const int64_t row : which) {
      const auto i = static_cast<size_t>(row);
      out[i] = DrawFromRow({data + i * vocab, vocab}, *rows[i].params, Uniform(rows[i]));
    }
    return;
  }
  std::vector<DrawInput> inputs;
  for (const int64_t row : which) {
    const SamplingRow& r = rows[static_cast<size_t>(row)];
    inputs.push_back({r.params, Uniform(r)});
  }
  const at::Tensor index = ToDevice(which, logits);
  ids.index_copy_(0, index, DrawFromRows(at::index_select(logits, 0, index), inputs));
}

}  // namespace

Sampled Sample(const at::Tensor& logits, std::span<const SamplingRow> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  TORCH_CHECK(
      logits.dim() == 2 && logits.size(0) == count && logits.scalar_type() == at::kFloat && logits.is_contiguous(),
      "expected contiguous f32 logits of ", count, " rows");
  RowIndices random, with_logprobs;
  for (int64_t i = 0; i < count; ++i) {
    const SamplingParams& params = *rows[static_cast<size_t>(i)].params;
    if (params.temperature > 0) random.push_back(i);
    if (params.logprobs) with_logprobs.push_back(i);
  }
  const bool all_random = static_cast<int64_t>(random.size()) == count;
  Sampled sampled;
  sampled.ids = all_random ? at::empty({count}, logits.options().dtype(at::kLong)) : at::argmax(logits, 1);
  if (!random.empty()) DrawRandomRows(logits, rows, random, sampled.ids);

  sampled.logprobs = at::zeros({count}, logits.options());
  if (!with_logprobs.empty()) {
    const at::Tensor index = ToDevice(with_logprobs, logits);
    const at::Tensor raw = at::index_select(logits, 0, index);
    const at::Tensor chosen = at::gather(raw, 1, at::index_select(sampled.ids, 0, index).unsqueeze(1)).squeeze(1);
    sampled.logprobs.index_copy_(0, index, chosen - at::logsumexp(raw, 1));
  }
  return sampled;
}

float PhiloxUniform(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> random =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<float>(random[0] >> 8) * 0x1p-24f;
}

}  // namespace fastdecode
