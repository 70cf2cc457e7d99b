// One cell of the decode attention bench: an R-worker's AttentionService filled with
// sequences of given lengths, passes over all its layers, each between two passes of the
// read-bandwidth probe over the same memory. A machine shared with others changes its speed
// within milliseconds or minutes: a pass is held against the probe's two passes around it, and
// one in which these differ by more than a tenth is left out and measured again.
#pragma once

#include <cstdint>
#include <functional>
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
  int batch = 32;        // sequences
  int context = 1024;    // cached tokens of each, the new one included
  std::string contexts;  // in their place sequences by length, as in "1x16384,63x128"
  std::string kv_dtype = "f16";
  int threads = 1;
  int block_tokens = 128;
  int passes = 5;
  std::string kernel = "auto";
  rworker::CpuTopology topology{};      // without nodes: this machine's
  rworker::ReadMethod read_method{};    // the fastest, where it is known; without a kernel it is found first
  std::function<void()> before_pass{};  // of each measured one: waits for its turn, which is one pass then
};

struct BenchResult {
  std::vector<int> contexts;  // of each sequence
  int layers = 0;             // as many as one pass needs to go beyond the caches, within 4 GiB
  int64_t pass_bytes = 0;     // of K and V
  std::string kernel;
  std::string pages;
  bool pinned = false;
  std::string read_method;
  std::vector<double> attend;  // bytes of K and V a second, by pass
  std::vector<double> read;    // bytes a second, by pass: mean of the probe before and after it
  int left_out = 0;            // passes measured again since the probe moved by more than a tenth
  int unsteady = 0;            // passes that are in, though it moved in every try
};

// The median of the passes' shares of the read bandwidth.
double ShareOfRead(const BenchResult& result);

Result<BenchResult> RunBench(const BenchCase& bench_case);

// One JSON object, one line: name, case, unit, median, min, max, spread, by_pass, tokens_per_s
// (cached tokens attended to, over sequences and layers), limit, ratio (the median of the passes').
std::string ToJson(const BenchCase& bench_case, const BenchResult& result);

}  // namespace fastdecode::bench
