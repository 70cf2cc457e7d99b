// One cell of the decode attention bench: an R-worker's AttentionService filled with
// sequences of one length, passes over all its layers in turns with passes of the
// read-bandwidth probe over the same memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/model_shape.h"
#include "common/base/status.h"
#include "rworker/cpu_topology.h"
#include "rworker/read_bandwidth.h"

namespace fastdecode::bench {

struct BenchCase {
  int heads = 32;
  int kv_heads = 32;
  int head_dim = 128;
  int batch = 32;      // sequences
  int context = 1024;  // cached tokens of each, the new one included
  int threads = 1;
  int block_tokens = 32;
  int passes = 5;
  std::string kernel = "auto";
  rworker::CpuTopology topology{};    // without nodes: this machine's
  rworker::ReadMethod read_method{};  // the fastest, where it is known; without a kernel it is found first
};

struct BenchResult {
  int layers = 0;          // as many as one pass needs to go beyond the caches
  int64_t pass_bytes = 0;  // of K and V
  std::string kernel;
  std::string pages;
  bool pinned = false;
  std::string read_method;
  std::vector<double> attend;  // bytes of K and V a second, by pass
  std::vector<double> read;    // bytes a second, the probe's passes between them
};

Result<BenchResult> RunBench(const BenchCase& bench_case);

// One JSON object, one line: name, case, unit, median, min, max, limit, ratio.
std::string ToJson(const BenchCase& bench_case, const BenchResult& result);

}  // namespace fastdecode::bench
