// fastdecode-rworker --self-test: what this host is worth as an R-worker, in a minute and
// for a human reader, with what to mend beside each finding.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "common/base/model_shape.h"
#include "common/base/status.h"

namespace fastdecode::rworker {

struct SelfTestOptions {
  std::vector<AttentionShape> shapes;
  int threads = 0;      // 0: what this process may use
  int numa_node = -1;   // -1: all
  double seconds = 60;  // measurements that would begin later are left out
  std::string kernel = "auto";
};

// "32x32x128,32x8x128": query heads, KV heads, head_dim. kInvalidArgument otherwise.
Result<std::vector<AttentionShape>> ParseShapes(const std::string& text);

// Prints as it goes. False: an R-worker here would compute nonsense or nothing.
// kInvalidArgument: a kernel or node that is not there.
Result<bool> RunSelfTest(const SelfTestOptions& options, std::FILE* out);

}  // namespace fastdecode::rworker
