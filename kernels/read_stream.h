// Loops that only read memory: the roofline that attention is measured against.
//
// The buffer is read in `streams` equal parts side by side, with a software
// prefetch `prefetch_bytes` ahead in each (0: none).
#pragma once

#include <cstdint>

namespace fastdecode::kernels {

struct ReadStreamParams {
  const void* data = nullptr;  // 64-byte aligned
  int64_t bytes = 0;           // a multiple of 256 * streams
  int32_t streams = 1;         // 1, 2, 4 or 8
  int32_t prefetch_bytes = 0;
};

}  // namespace fastdecode::kernels
