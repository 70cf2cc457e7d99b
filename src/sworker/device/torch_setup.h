// How this process uses libtorch.
#pragma once

namespace fastdecode {

// Once, early in main, after InitLogging and before any other use of libtorch: its
// warnings go to glog, its exceptions collect no backtrace (whose text costs 10 ms to
// make), and it starts no threads of its own: splitting work is ComputePool's job.
void InitTorch();

}  // namespace fastdecode
