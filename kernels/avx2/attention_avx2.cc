#include "kernels/avx2/vector_avx2.h"
#include "kernels/dispatch.h"
#include "kernels/simd/kernel.h"

namespace fastdecode::kernels {

extern const AttentionKernel kAvx2Kernel;
constinit const AttentionKernel kAvx2Kernel =
    MakeKernel<Avx2>("avx2", "AVX2, FMA and F16C, 8 lanes of f32", kAvx2 | kFma | kF16c);

}  // namespace fastdecode::kernels
