#include "sworker/serving/plan_watch.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "plan/profile.h"

namespace fastdecode {
namespace {

constexpr int64_t kLineNs = 60'000'000'000;

plan::Deployment DeploymentOf(const Config& config) {
  plan::Deployment deployment;
  deployment.layers = config.model.layers;
  deployment.mini_batches = config.pipeline.mini_batches;
  deployment.rworkers = std::max<int>(config.rworkers.count, static_cast<int>(config.rworkers.hosts.size()));
  deployment.batch = config.pipeline.max_batch;
  deployment.output_tokens = config.max_context;
  return deployment;
}

Result<plan::ModelProfile> ProfileOf(const Config& config) {
  const Result<plan::Profile> profile = plan::LoadProfile(config.plan.profile);
  if (!profile.ok()) return Status(profile.status().code(), "plan.profile: " + profile.status().message());
  const auto model = plan::FindModel(*profile, plan::KeyOf(config));
  if (model.ok()) return **model;
  return Status(model.status().code(), "plan.profile: " + config.plan.profile + ": " + model.status().message());
}

}  // namespace

Result<std::unique_ptr<PlanWatch>> PlanWatch::Make(const Config& config) {
  if (config.plan.profile.empty()) return std::unique_ptr<PlanWatch>();
  FD_ASSIGN_OR_RETURN(plan::ModelProfile profile, ProfileOf(config));
  return std::unique_ptr<PlanWatch>(new PlanWatch(config, std::move(profile)));
}

PlanWatch::PlanWatch(const Config& config, plan::ModelProfile profile)
    : path_(config.plan.profile), transport_(profile.key.transport), watch_(std::move(profile), DeploymentOf(config)) {}

Status PlanWatch::CheckTransports(const std::set<std::string>& kinds) const {
  const std::string used = plan::TransportsText(kinds);
  if (plan::SameTransport(transport_, used)) return OkStatus();
  return InvalidArgument("plan.profile: " + path_ + " was measured over " + transport_ + ", and rows go over " + used +
                         " here: measure again (fastdecode-plan measure), or set transport.kind");
}

void PlanWatch::PassDone(const FinishedPass& pass, const Timeline& timeline) {
  std::lock_guard lock(mutex_);
  watch_.PassDone(pass.mini_batch, pass.begin_ns, pass.end_ns, pass.rows, pass.workload, pass.prefilled);
  if (next_line_ns_ == 0) next_line_ns_ = pass.end_ns + kLineNs;
  if (pass.end_ns < next_line_ns_ || watch_.passes() == 0) return;
  next_line_ns_ = pass.end_ns + kLineNs;
  const plan::Comparison c = CompareLocked(timeline.Window());
  LOG(INFO) << "plan: a step takes " << c.measured.step_s * 1e3 << " ms, predicted " << c.predicted.step_s * 1e3
            << " ms, over " << watch_.passes() << " passes" << (c.differs.empty() ? "" : "; " + c.differs);
}

plan::Comparison PlanWatch::CompareLocked(const TimelineWindow& window) const {
  const double steps = std::max(1.0, static_cast<double>(window.steps)) * 1e9;
  plan::MeasuredSteps measured;
  measured.tokens_per_s = watch_.measured_tokens_per_s();
  measured.step_s = watch_.measured_step_s();
  measured.device_busy_s = static_cast<double>(window.s_busy_ns) / steps;
  measured.rworker_busy_s = static_cast<double>(window.r_busy_ns) / steps;
  measured.workload = watch_.measured_workload();
  return plan::Compare(watch_.predicted(), measured);
}

nlohmann::json PlanWatch::Stats(const TimelineWindow& window) const {
  std::lock_guard lock(mutex_);
  const plan::Comparison c = CompareLocked(window);
  const auto pair = [](double predicted, double measured) {
    return nlohmann::json{
        {"predicted", predicted}, {"measured", measured}, {"ratio", measured > 0 ? predicted / measured : 0.0}};
  };
  return {{"passes", watch_.passes()},
          {"step_ms", pair(c.predicted.step_s * 1e3, c.measured.step_s * 1e3)},
          {"s_part_ms", pair(c.predicted.stages_s * 1e3, c.measured.device_busy_s * 1e3)},
          {"r_part_ms", pair(c.predicted.kernels_s * 1e3, c.measured.rworker_busy_s * 1e3)},
          {"differs", c.differs}};
}

void PlanWatch::Reset() {
  std::lock_guard lock(mutex_);
  watch_.Reset();
}

Status ApplyPlan(Config* config) {
  if (config->plan.profile.empty()) return OkStatus();
  FD_ASSIGN_OR_RETURN(const plan::ModelProfile profile, ProfileOf(*config));
  if (!config->load_control.enabled || config->load_control.workload_limit != 0) return OkStatus();
  config->load_control.workload_limit =
      std::max<int64_t>(plan::WorkloadLimit(profile, DeploymentOf(*config)), config->max_context);
  LOG(INFO) << "load_control.workload_limit: " << config->load_control.workload_limit << " by " << config->plan.profile;
  return OkStatus();
}

}  // namespace fastdecode
