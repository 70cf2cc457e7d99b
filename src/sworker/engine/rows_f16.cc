#include "sworker/engine/rows_f16.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>

#include "sworker/engine/engine_context.h"

namespace fastdecode {
namespace {

// bf16 has nothing between 65280 and 65536, where f16 has its largest, 65504.
float Bound(at::ScalarType type) { return type == at::kBFloat16 ? 65280.0f : kMaxF16; }

}  // namespace

void GatherRows(std::span<const HostRows> slices, int64_t rows, int64_t width, const at::TensorOptions& options,
                at::Tensor* out) {
  if (!out->defined() || out->size(0) != rows || out->size(1) != width) *out = at::empty({rows, width}, options);
  for (const HostRows& slice : slices) {
    at::Tensor part = out->narrow(0, slice.row_begin, slice.rows);
    if (slice.lost) {
      part.zero_();
    } else {
      part.copy_(HostRowsTensor(slice.data, slice.rows, width), /*non_blocking=*/true);
    }
  }
}

void ScatterRows(const at::Tensor& data, std::span<const HostRows> slices, int64_t width, at::Tensor* row_max) {
  at::Tensor largest = at::amax(at::abs(data), {1}).to(at::kFloat);
  *row_max = row_max->defined() ? at::maximum(*row_max, largest) : largest;
  const float bound = Bound(data.scalar_type());
  const at::Tensor bounded = at::clamp(data, -bound, bound);
  for (const HostRows& slice : slices) {
    if (slice.lost) continue;
    HostRowsTensor(slice.data, slice.rows, width)
        .copy_(bounded.narrow(0, slice.row_begin, slice.rows), /*non_blocking=*/true);
  }
}

at::Tensor SaturatedF16(const at::Tensor& data) {
  const float bound = Bound(data.scalar_type());
  return at::clamp(data, -bound, bound).to(at::kHalf);
}

}  // namespace fastdecode
