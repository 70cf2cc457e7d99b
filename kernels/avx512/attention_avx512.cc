#include "kernels/avx512/vector_avx512.h"
#include "kernels/dispatch.h"
#include "kernels/simd/kernel.h"

namespace fastdecode::kernels {

extern const AttentionKernel kAvx512Kernel;
constinit const AttentionKernel kAvx512Kernel =
    MakeKernel<Avx512>("avx512", "AVX-512, 16 lanes of f32",
                       kAvx2 | kFma | kF16c | kAvx512f | kAvx512vl | kAvx512dq | kAvx512bw | kAvx512vnni);

}  // namespace fastdecode::kernels
