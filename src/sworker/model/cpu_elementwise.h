// What a layer does between its matrix products, on the CPU: plain loops that the
// compiler vectorises, f32 arithmetic whatever the storage. T: float or c10::BFloat16.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastdecode {

// y = x / sqrt(mean(x^2) + eps) rounded to T, then times weight, as Hugging Face's
// LlamaRMSNorm. x, y: n elements; y may be x.
template <typename T>
void RmsNormRow(const T* x, const T* weight, T* y, int64_t n, float eps);

// Rotates one head: element i with element i + half, by the position's angles (cos, sin:
// half elements). half <= 128; y may be x.
template <typename T>
void RopeHead(const T* x, const float* cos, const float* sin, T* y, int64_t half);

extern template void RmsNormRow(const float*, const float*, float*, int64_t, float);
extern template void RmsNormRow(const c10::BFloat16*, const c10::BFloat16*, c10::BFloat16*, int64_t, float);
extern template void RopeHead(const float*, const float*, const float*, float*, int64_t);
extern template void RopeHead(const c10::BFloat16*, const float*, const float*, c10::BFloat16*, int64_t);

}  // namespace fastdecode
