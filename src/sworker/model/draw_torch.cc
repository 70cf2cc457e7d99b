#include <ATen/ops/arange.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>

#include <limits>
#include <vector>

#include "sworker/model/draw.h"

namespace fastdecode {
namespace {

template <typename T>
at::Tensor Column(std::vector<T>& values, at::ScalarType dtype, at::Device device) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size()), 1}, dtype).clone().to(device);
}

}  // namespace

at::Tensor DrawFromRows(const at::Tensor& logits, std::span<const DrawInput> rows) {
  const int64_t vocab = logits.size(1);
  const at::Device device = logits.device();
  std::vector<float> temperatures;
  std::vector<double> top_ps, uniforms;
  std::vector<int64_t> top_ks;
  for (const DrawInput& row : rows) {
    temperatures.push_back(row.params->temperature);
    top_ks.push_back(row.params->top_k > 0 ? row.params->top_k : vocab);
    top_ps.push_back(row.params->top_p < 1 ? static_cast<double>(row.params->top_p) : 2.0);  // 2: never reached
    uniforms.push_back(static_cast<double>(row.uniform));
  }
  const double impossible = -std::numeric_limits<double>::infinity();
  const auto [sorted, ids] = at::sort(logits.nan_to_num(impossible, std::nullopt, impossible), /*stable=*/true,
                                      /*dim=*/1, /*descending=*/true);
  const at::Tensor rank = at::arange(vocab, at::TensorOptions(at::kLong).device(device)).unsqueeze(0);
  const at::Tensor scaled = (sorted - sorted.narrow(1, 0, 1)) / Column(temperatures, at::kFloat, device);
  const at::Tensor within_k = scaled.masked_fill(rank >= Column(top_ks, at::kLong, device), impossible);
  const at::Tensor p = at::softmax(within_k, 1, at::kDouble);
  const at::Tensor before = at::cumsum(p, 1) - p;
  const at::Tensor keep = before.lt(Column(top_ps, at::kDouble, device)).logical_or(rank.eq(0));
  const at::Tensor sums = at::cumsum(p.masked_fill(keep.logical_not(), 0), 1);
  const at::Tensor target = sums.narrow(1, vocab - 1, 1) * Column(uniforms, at::kDouble, device);
  // Of the ranks that are kept and possible, the first whose sum passes the target.
  const at::Tensor last = keep.logical_and(p.gt(0)).sum(1, /*keepdim=*/true).sub(1).clamp_min(0);
  const at::Tensor chosen = at::minimum(sums.le(target).sum(1, /*keepdim=*/true), last);
  return at::gather(ids, 1, chosen).squeeze(1);
}

}  // namespace fastdecode
