// Between the device's rows and the transport's f16 rows in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "sworker/attention/backend.h"

namespace fastdecode {

inline constexpr float kMaxF16 = 65504;

// slices -> *out [rows, width] with these options; rows of lost R-workers become zeros.
// *out is reused if it fits.
void GatherRows(std::span<const HostRows> slices, int64_t rows, int64_t width, const at::TensorOptions& options,
                at::Tensor* out);

// data [rows, width] -> f16 slices. Values beyond f16's range are saturated.
// *row_max [rows] f32: the largest |value| of each row so far (undefined: none yet).
void ScatterRows(const at::Tensor& data, std::span<const HostRows> slices, int64_t width, at::Tensor* row_max);

// data [rows, n], compute -> f16, contiguous, saturated.
at::Tensor SaturatedF16(const at::Tensor& data);

}  // namespace fastdecode
