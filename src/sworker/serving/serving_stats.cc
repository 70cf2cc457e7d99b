// ServingCore::Stats: the numbers that bench and clients read (docs/protocol.md).
#include <algorithm>

#include "sworker/serving/serving_core.h"

namespace fastdecode {
namespace {

double Milliseconds(int64_t ns) { return static_cast<double>(ns) / 1e6; }

nlohmann::json Json(const Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}, {"max", d.max}};
}

nlohmann::json Shares(const TimelineWindow& window) {
  const double wall = std::max(1.0, static_cast<double>(window.wall_ns));
  auto share = [wall](int64_t ns) { return static_cast<double>(ns) / wall; };
  return {{"s_part", share(window.s_part_ns)},       {"r_part", share(window.r_part_ns)},
          {"wire", share(window.wire_ns)},           {"copy", share(window.copy_ns)},
          {"scheduler", share(window.scheduler_ns)}, {"idle", share(window.idle_ns)}};
}

}  // namespace

nlohmann::json ServingCore::Stats() {
  const TimelineWindow window = timeline_.Window();
  SchedulerStats stats;
  uint64_t output_tokens = 0;
  {
    std::lock_guard lock(mutex_);
    stats = stats_;
    output_tokens = window_output_tokens_;
  }
  // Busy times a step: what overlap hides. Without it a step would take their sum.
  const double steps = std::max(1.0, static_cast<double>(window.steps));
  const double s_busy = Milliseconds(window.s_busy_ns) / steps;
  const double r_busy = Milliseconds(window.r_busy_ns) / steps;
  nlohmann::json all = {{"window",
                         {{"wall_s", static_cast<double>(window.wall_ns) / 1e9},
                          {"steps", window.steps},
                          {"passes", window.passes},
                          {"step_ms", Json(window.step_ms)},
                          {"busy_ms", {{"s_worker", s_busy}, {"r_worker", r_busy}}},
                          {"share", Shares(window)},
                          {"workload",
                           {{"peak", window.workload_peak},
                            {"limit", config_.load_control.enabled ? stats.workload_limit : 0},
                            {"mean", window.workload_mean}}},
                          {"wire_bytes", window.wire_bytes},
                          {"output_tokens", output_tokens},
                          {"decode_rows", window.decode_rows},
                          {"prefill_tokens", window.prefill_tokens},
                          {"f16_overflows", window.f16_overflows}}},
                        {"config", nlohmann::json::parse(ConfigToJson(config_))},
                        {"scheduler",
                         {{"waiting", stats.waiting},
                          {"prefilling", stats.prefilling},
                          {"ready", stats.ready},
                          {"decoding", stats.decoding},
                          {"workload_limit", stats.workload_limit},
                          {"workload", stats.workload},
                          {"reserved_blocks", stats.reserved_blocks},
                          {"total_blocks", stats.total_blocks}}},
                        {"rworkers", outputs_.rworker_stats ? outputs_.rworker_stats() : nlohmann::json::array()}};
  if (outputs_.plan != nullptr) all["plan"] = outputs_.plan->Stats(window);
  return all;
}

}  // namespace fastdecode
