// AMX's kernel, put together from what it shares with AVX-512's. This runs before main, on
// any CPU, so this file is compiled for any CPU.
#include "kernels/amx/amx_ops.h"
#include "kernels/dispatch.h"

namespace fastdecode::kernels {
namespace {

AttentionKernel MakeAmx() {
  AttentionKernel kernel = kAvx512Kernel;  // a constant, there before any code runs
  kernel.name = "amx";
  kernel.description = "AMX tiles of bf16 for several query vectors of a KV head, else AVX-512";
  kernel.features |= kAvx512bf16 | kAmxBf16;
  const auto take = [&](KvFormat format, const AmxOps& ops) {
    KeyOps& keys = kernel.keys[static_cast<int>(format)];
    keys.packed_floats = ops.packed_floats;
    keys.load_query = ops.load_query;
    keys.scores = ops.scores;
    kernel.values[static_cast<int>(format)].add = ops.add;
  };
  take(KvFormat::kF16, kAmxF16Ops);
  take(KvFormat::kBf16, kAmxBf16Ops);
  kernel.enter = &EnterAmx;
  kernel.leave = &LeaveAmx;
  return kernel;
}

}  // namespace

extern const AttentionKernel kAmxKernel;
const AttentionKernel kAmxKernel = MakeAmx();

}  // namespace fastdecode::kernels
