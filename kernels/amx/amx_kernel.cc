// AMX's kernel, put together from what it shares with AVX-512's. This runs before main, on
// any CPU, so this file is compiled for any CPU.
#include "kernels/amx/amx_ops.h"
#include "kernels/dispatch.h"

namespace fastdecode::kernels {
namespace {

AttentionKernel MakeAmx() {
  constexpr int kF16 = static_cast<int>(KvFormat::kF16);
  AttentionKernel kernel = kAvx512Kernel;  // a constant, there before any code runs
  kernel.name = "amx";
  kernel.description = "AMX tiles of bf16 pairs for eight query vectors and more, else AVX-512";
  kernel.features |= kAvx512bf16 | kAmxBf16;
  kernel.keys[kF16].packed_floats = kAmxOps.packed_floats;
  kernel.keys[kF16].load_query = kAmxOps.load_query;
  kernel.keys[kF16].scores = kAmxOps.scores;
  kernel.values[kF16].add = kAmxOps.add;
  kernel.enter = kAmxOps.enter;
  kernel.leave = kAmxOps.leave;
  return kernel;
}

}  // namespace

extern const AttentionKernel kAmxKernel;
const AttentionKernel kAmxKernel = MakeAmx();

}  // namespace fastdecode::kernels
