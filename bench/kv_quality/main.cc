// bench_kv_quality: what a format of the KV cache costs in quality, on a real checkpoint.
//
// Runs Hugging Face's greedy cases of a model (models/README.md) through the R-worker's own
// cache and kernels, once for each format, and prints one JSON object a format:
//   mean, max   of |O - reference| over the root mean square of the reference's row; O of
//               every decode step, layer and head, the reference being attention in double
//               precision over the f16 rows before they are stored. No unit.
//   ids         prompts whose 48 or so ids are Hugging Face's, of how many; where they part,
//               the earliest step and the largest margin (best minus second logit) lost
//   margins     with Hugging Face's tokens fed in: |our margin - Hugging Face's|, median and
//               largest over all steps
// The limit is f16, in which the rows arrive.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "bench/kv_quality/cached_decoder.h"
#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "kernels/dispatch.h"
#include "sworker/device/torch_setup.h"
#include "tests/support/greedy_run.h"
#include "tests/support/teacher_forced.h"

DEFINE_string(model, "models/tinystories-656k", "the model's folder");
DEFINE_string(expected, "", "file of greedy runs; empty: expected_many.json in the model's folder");
DEFINE_string(kv_dtype, "f16,bf16,int8,int4,int8/int4", "formats, or keys/values; separated by commas");
DEFINE_string(kernel, "auto", "attention kernel: auto, or one by name");
DEFINE_int32(threads, 1, "threads of the S-part");
DEFINE_int32(max_context, 2048, "tokens of one sequence at most");

namespace fastdecode::bench {
namespace {

using testing::Oracle;
using testing::OracleCase;

nlohmann::ordered_json IdsJson(const Oracle& oracle, const std::vector<std::vector<int32_t>>& ids) {
  size_t equal = 0;
  std::optional<size_t> earliest;
  double largest_margin = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const OracleCase& one = oracle.cases[i];
    const auto parted = std::mismatch(ids[i].begin(), ids[i].end(), one.greedy_ids.begin(), one.greedy_ids.end());
    if (parted.first == ids[i].end() && parted.second == one.greedy_ids.end()) {
      ++equal;
      continue;
    }
    const auto step = static_cast<size_t>(parted.first - ids[i].begin());
    earliest = std::min(earliest.value_or(step), step);
    largest_margin = std::max(largest_margin, one.margins[std::min(step, one.margins.size() - 1)]);
  }
  nlohmann::ordered_json json = {{"equal", equal}, {"prompts", ids.size()}};
  if (earliest) {
    json["earliest_step"] = *earliest;
    json["largest_margin_lost"] = largest_margin;
  }
  return json;
}

nlohmann::ordered_json RunFormat(const Model& model, DeviceRuntime& device, const kernels::AttentionKernel& kernel,
                                 kernels::KvCodes codes, const Oracle& oracle) {
  const ModelConfig& config = model.config();
  const int context = static_cast<int>(std::min<int64_t>(config.max_position_embeddings, FLAGS_max_context));
  CachedDecoder decoder(model, device, kernel, codes, context);
  const auto ids = testing::GreedyRun(decoder, std::span<const OracleCase>(oracle.cases), config.eos_token_ids);
  const OutputErrors errors = decoder.errors();
  nlohmann::ordered_json json;
  json["name"] = "kv_quality";
  json["case"] = {{"model", oracle.model},
                  {"keys", kernels::NameOf(codes.keys)},
                  {"values", kernels::NameOf(codes.values)},
                  {"kernel", kernel.name},
                  {"kv_token_bytes", decoder.token_bytes()}};
  json["unit"] = "|O - reference| / rms(reference)";
  json["mean"] = errors.mean();
  json["max"] = errors.largest;
  json["elements"] = errors.elements;
  json["ids"] = IdsJson(oracle, ids);
  if (!oracle.cases.front().second_ids.empty()) {
    const auto verdict =
        testing::CompareMargins(oracle, testing::TeacherForced(decoder, oracle), testing::OracleLimits());
    json["margins"] = {{"median", verdict.median}, {"max", verdict.largest}, {"steps", verdict.steps}};
  }
  return json;
}

Status Run() {
  const std::string expected = FLAGS_expected.empty() ? FLAGS_model + "/expected_many.json" : FLAGS_expected;
  FD_ASSIGN_OR_RETURN(const Oracle oracle, testing::LoadOracle(expected));
  std::vector<kernels::KvCodes> formats;
  std::stringstream list(FLAGS_kv_dtype);
  for (std::string text; std::getline(list, text, ',');) {
    const auto codes = kernels::CodesOf(text);
    if (!codes)
      return InvalidArgument("--kv_dtype: " + text + " is not in this build; there are " + kernels::FormatList());
    formats.push_back(*codes);
  }
  const kernels::KernelChoice choice = kernels::ChooseAttentionKernel(FLAGS_kernel, kernels::DetectCpuFeatures());
  if (choice.kernel == nullptr) return InvalidArgument(choice.error);
  Config config;
  config.model.path = FLAGS_model;
  FD_ASSIGN_OR_RETURN(config.model_config, LoadModelConfig(FLAGS_model));
  config.max_context =
      static_cast<int>(std::min<int64_t>(config.model_config.max_position_embeddings, FLAGS_max_context));
  const auto device = MakeCpuRuntime(FLAGS_threads, /*pin=*/false);
  FD_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadModel(config, *device));
  for (const kernels::KvCodes codes : formats) {
    std::printf("%s\n", RunFormat(*model, *device, *choice.kernel, codes, oracle).dump().c_str());
    std::fflush(stdout);
  }
  return OkStatus();
}

}  // namespace
}  // namespace fastdecode::bench

int main(int argc, char** argv) {
  const fastdecode::ProgramText text{"bench_kv_quality",
                                     "States the errors of KV formats on a real checkpoint, one JSON object a format.\n"
                                     "Exit status: 0 done, 2 usage or a file that cannot be read."};
  if (const std::optional<int> status = fastdecode::ParseFlags(text, &argc, &argv)) return *status;
  fastdecode::InitLogging(argv[0]);
  fastdecode::InitTorch();
  const fastdecode::Status status = fastdecode::bench::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_kv_quality: %s\n", status.message().c_str());
  return 2;
}
