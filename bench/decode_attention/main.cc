// bench_decode_attention: what share of the memory's read bandwidth the R-worker's decode
// attention reaches.
//
// Unit: GB/s of K and V read (10^9 bytes; Q, O and partial results are not counted).
// Roofline: the read bandwidth of the same threads over the same memory, measured before and after
// each pass. A pass is one step over as many layers as it takes to touch 1 GiB and
// three times the last-level cache; the new token's append is part of it.
#include <gflags/gflags.h>

#include <cstdio>
#include <fstream>
#include <optional>

#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "rworker/self_test/bench_case.h"

DEFINE_int32(heads, 32, "query heads");
DEFINE_int32(kv_heads, 32, "KV heads; divides heads");
DEFINE_int32(head_dim, 128, "elements of a head");
DEFINE_int32(batch, 32, "sequences");
DEFINE_int32(context, 1024, "cached tokens of each sequence");
DEFINE_string(contexts, "",
              "sequences by their cached tokens, as in 1x16384,63x128; takes the place of --batch and --context");
DEFINE_string(kv_dtype, "f16", "format of K and V: f16, bf16, int8, int4, or keys/values as in int8/int4");
DEFINE_int32(threads, 1, "threads; 0: as many as this process may use CPUs");
DEFINE_int32(block_tokens, 128, "tokens of a KV block");
DEFINE_int32(passes, 5, "measured passes");
DEFINE_string(kernel, "auto", "attention kernel: auto, or one by name");
DEFINE_bool(in_turns, false, "print 'ready' and wait for a line on standard input before each measured pass");
DEFINE_string(json, "", "append the line to this file too");

namespace {

void WaitForTurn() {
  std::printf("ready\n");
  std::fflush(stdout);
  for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
}

bool Given(const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; }

}  // namespace

int main(int argc, char** argv) {
  const fastdecode::ProgramText text{"bench_decode_attention",
                                     "Measures decode attention against read bandwidth; prints one JSON object.\n"
                                     "Exit status: 0 done, 2 usage, 3 could not measure."};
  if (const std::optional<int> status = fastdecode::ParseFlags(text, &argc, &argv)) return *status;
  fastdecode::InitLogging(argv[0]);
  if (!FLAGS_contexts.empty() && (Given("batch") || Given("context"))) {
    std::fprintf(stderr, "bench_decode_attention: --contexts takes the place of --batch and --context\n");
    return 2;
  }
  const fastdecode::bench::BenchCase bench_case{.heads = FLAGS_heads,
                                                .kv_heads = FLAGS_kv_heads,
                                                .head_dim = FLAGS_head_dim,
                                                .batch = FLAGS_batch,
                                                .context = FLAGS_context,
                                                .contexts = FLAGS_contexts,
                                                .kv_dtype = FLAGS_kv_dtype,
                                                .threads = FLAGS_threads,
                                                .block_tokens = FLAGS_block_tokens,
                                                .passes = FLAGS_passes,
                                                .kernel = FLAGS_kernel,
                                                .before_pass = FLAGS_in_turns ? WaitForTurn : nullptr};
  const auto result = fastdecode::bench::RunBench(bench_case);
  if (!result.ok()) {
    std::fprintf(stderr, "bench_decode_attention: %s\n", result.status().message().c_str());
    return result.status().code() == fastdecode::StatusCode::kInvalidArgument ? 2 : 3;
  }
  const std::string line = fastdecode::bench::ToJson(bench_case, *result);
  std::printf("%s\n", line.c_str());
  if (!FLAGS_json.empty()) {
    std::ofstream file(FLAGS_json, std::ios::app);
    file << line << "\n";
    if (!file.flush()) {
      std::fprintf(stderr, "bench_decode_attention: can't write %s\n", FLAGS_json.c_str());
      return 3;
    }
  }
  return 0;
}
