#include "plan_comparison.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "plan/profile.h"

namespace fastdecode {
namespace {

using nlohmann::ordered_json;

// The S-worker's effective config, by way of a file: that is how configs are read.
Result<Config> ConfigOf(const nlohmann::json& stats) {
  std::string path = (std::filesystem::temp_directory_path() / "fastdecode-bench-XXXXXX").string();
  const int file = mkstemp(path.data());
  if (file < 0) return Internal("no temporary file " + path);
  close(file);
  std::ofstream(path) << stats.value("config", nlohmann::json::object()).dump();
  Result<Config> config = LoadConfig(path);
  std::filesystem::remove(path);
  return config;
}

std::string TransportsOf(const nlohmann::json& stats) {
  std::set<std::string> kinds;
  for (const auto& rworker : stats.value("rworkers", nlohmann::json::array())) {
    if (rworker.value("joined", false)) kinds.insert(rworker.value("transport", ""));
  }
  return plan::TransportsText(kinds);
}

plan::Deployment DeploymentOf(const Config& config, const Workload& workload) {
  plan::Deployment deployment;
  deployment.layers = config.model.layers;
  deployment.mini_batches = config.pipeline.mini_batches;
  deployment.rworkers = static_cast<int>(config.rworkers.hosts.size());
  deployment.batch = workload.in_flight > 0 ? workload.in_flight : config.pipeline.max_batch;
  for (const BenchRequest& request : workload.requests) {
    deployment.prompt_tokens += request.prompt_tokens;
    deployment.output_tokens += request.output_tokens;
  }
  const double count = std::max<double>(1, static_cast<double>(workload.requests.size()));
  deployment.prompt_tokens /= count;
  deployment.output_tokens /= count;
  return deployment;
}

}  // namespace

Result<PlanComparison> PlanComparison::Make(const nlohmann::json& stats, const std::string& profile_path) {
  FD_ASSIGN_OR_RETURN(const plan::Profile profile, plan::LoadProfile(profile_path));
  FD_ASSIGN_OR_RETURN(Config config, ConfigOf(stats));
  plan::ModelKey key = plan::KeyOf(config);
  key.transport = TransportsOf(stats);
  const auto model = plan::FindModel(profile, key);
  if (model.ok()) return PlanComparison(std::move(config), **model);
  return Status(model.status().code(), profile_path + ": " + model.status().message());
}

plan::Comparison PlanComparison::Compare(const ordered_json& report, const Measured& run, const Workload& workload,
                                         bool decode_only) const {
  plan::Deployment deployment = DeploymentOf(config_, workload);
  if (decode_only) {  // the lengths of the part that was measured
    deployment.prompt_tokens = run.cached_before;
    deployment.output_tokens = static_cast<double>(run.output_tokens) / deployment.batch;
  }
  const plan::StepPrediction predicted =
      decode_only ? plan::PredictDecode(model_, deployment) : plan::PredictSteady(model_, deployment).step;
  const ordered_json busy = report["window"].value("busy_ms", ordered_json::object());
  plan::MeasuredSteps measured;
  measured.tokens_per_s = report["tokens_per_s"].get<double>();
  measured.step_s = report["step_ms"]["mean"].get<double>() / 1e3;
  measured.device_busy_s = busy.value("s_worker", 0.0) / 1e3;
  measured.rworker_busy_s = busy.value("r_worker", 0.0) / 1e3;
  measured.workload = report["workload"]["mean"].get<double>();
  return plan::Compare(predicted, measured);
}

ordered_json ToJson(const plan::Comparison& c) {
  const auto pair = [](double predicted, double measured, double ratio) {
    return ordered_json{{"predicted", predicted}, {"measured", measured}, {"ratio", ratio}};
  };
  return {{"tokens_per_s", pair(c.predicted.tokens_per_s, c.measured.tokens_per_s, c.tokens_ratio)},
          {"step_ms", pair(c.predicted.step_s * 1e3, c.measured.step_s * 1e3,
                           c.measured.step_s > 0 ? c.predicted.step_s / c.measured.step_s : 0)},
          {"s_part_ms", pair(c.predicted.stages_s * 1e3, c.measured.device_busy_s * 1e3, c.device_ratio)},
          {"r_part_ms", pair(c.predicted.kernels_s * 1e3, c.measured.rworker_busy_s * 1e3, c.rworker_ratio)},
          {"workload", pair(c.predicted.workload, c.measured.workload, c.workload_ratio)},
          {"bound", c.predicted.bound},
          {"differs", c.differs}};
}

}  // namespace fastdecode
