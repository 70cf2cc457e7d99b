#include "sim/report.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

namespace fastdecode::sim {
namespace {

using nlohmann::ordered_json;

ordered_json Summary(const Histogram& histogram) {
  return {{"mean", histogram.mean_ms()},
          {"p50", histogram.PercentileMs(0.5)},
          {"p90", histogram.PercentileMs(0.9)},
          {"p99", histogram.PercentileMs(0.99)},
          {"max", histogram.max_ms()}};
}

[[gnu::format(printf, 2, 3)]] void Append(std::string& out, const char* format, ...) {
  std::array<char, 512> buffer;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  out += buffer.data();
}

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

ordered_json FaultsJson(const std::vector<Fault>& faults) {
  ordered_json list = ordered_json::array();
  for (const Fault& fault : faults) {
    ordered_json one = {{"kind", fault.kind == Fault::Kind::kLost ? "lost" : "slow"},
                        {"rworker", fault.rworker},
                        {"at_s", fault.at_s},
                        {"for_s", fault.for_s}};
    if (fault.kind == Fault::Kind::kSlow) one["factor"] = fault.factor;
    list.push_back(std::move(one));
  }
  return list;
}

ordered_json SimulatedJson(const SimReport& report, const SimOptions& options) {
  return {{"end_s", static_cast<double>(report.end) / 1e9},
          {"events", report.events},
          {"unfinished", report.unfinished},
          {"rworkers", options.scheduler.num_rworkers},
          {"layers", options.layers},
          {"layers_per_event", options.layers_per_event},
          {"mini_batches", options.scheduler.mini_batches},
          {"max_batch", options.scheduler.max_batch},
          {"max_context", options.scheduler.max_context},
          {"kv_blocks", options.kv_blocks},
          {"load_control", options.scheduler.load_control},
          {"device_jitter", options.device_jitter},
          {"rworker_jitter", options.rworker_jitter},
          {"straggling", options.straggling},
          {"straggler_factor", options.straggler_factor},
          {"faults", FaultsJson(options.faults)},
          {"measure", {options.measure_from, options.measure_to}},
          {"seed", options.seed}};
}

}  // namespace

ordered_json ToJson(const SimReport& report, const SimOptions& options, const std::string& asked_for) {
  const Measurement& m = report.measured;
  const auto wall = static_cast<double>(m.wall);
  const auto share = [&](Nanos part) { return Ratio(static_cast<double>(part), wall); };
  const auto tokens = static_cast<double>(m.output_tokens);
  const auto steps = static_cast<double>(std::max<int64_t>(1, m.steps));
  Nanos busiest = 0;
  double busy_sum = 0;
  for (const Nanos busy : m.r_busy) {
    busiest = std::max(busiest, busy);
    busy_sum += static_cast<double>(busy);
  }
  const double rworkers = static_cast<double>(std::max<size_t>(1, m.r_busy.size()));
  return {{"tokens_per_s", Ratio(tokens, wall / 1e9)},
          {"requests", report.requests},
          {"failed", m.lost + m.refused + report.unfinished},
          {"failures", {{"rworker_lost", m.lost}, {"too_long", m.refused}, {"unfinished", report.unfinished}}},
          {"prompt_tokens", m.prompt_tokens},
          {"output_tokens", m.output_tokens},
          {"asked_for", asked_for},
          {"ttft_ms", Summary(m.ttft)},
          {"itl_ms", Summary(m.itl)},
          {"wall_s", wall / 1e9},
          {"steps", m.steps},
          {"step_ms", Summary(m.step)},
          {"share",
           {{"s_part", share(m.s_part)},
            {"r_part", share(m.r_part)},
            {"wire", share(m.wire)},
            {"copy", share(m.copy)},
            {"scheduler", share(m.scheduler)},
            {"idle", share(m.idle)}}},
          {"busy_ms",
           {{"s_worker", static_cast<double>(m.s_busy) / 1e6 / steps},
            {"r_worker", static_cast<double>(busiest) / 1e6 / steps}}},
          {"busy_share", {{"s_worker", share(m.s_busy)}, {"r_workers", Ratio(busy_sum / rworkers, wall)}}},
          {"workload",
           {{"peak", m.workload_peak},
            {"limit", options.scheduler.load_control ? report.workload_limit : 0},
            {"mean", Ratio(m.workload_sum, static_cast<double>(m.passes))}}},
          {"mean_rows", Ratio(static_cast<double>(m.decode_rows), static_cast<double>(m.passes))},
          {"wire_bytes_per_token", Ratio(static_cast<double>(m.wire_bytes), tokens)},
          {"simulated", SimulatedJson(report, options)}};
}

std::string Table(const ordered_json& json) {
  std::string out;
  const auto number = [](const ordered_json& value) { return value.get<double>(); };
  Append(out, "%-22s %.1f tokens/s over %.2f simulated s\n", "throughput", number(json["tokens_per_s"]),
         number(json["wall_s"]));
  Append(out, "%-22s %.0f, %.0f failed\n\n", "requests", number(json["requests"]), number(json["failed"]));
  Append(out, "%-22s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50", "p90", "p99", "max");
  for (const auto& [name, key] : {std::pair("to the first token", "ttft_ms"), std::pair("between two tokens", "itl_ms"),
                                  std::pair("a step", "step_ms")}) {
    const ordered_json& summary = json[key];
    Append(out, "%-22s %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, number(summary["mean"]), number(summary["p50"]),
           number(summary["p90"]), number(summary["p99"]), number(summary["max"]));
  }
  const ordered_json& load = json["workload"];
  Append(out, "\n%-22s peak %.0f, limit %.0f, mean %.0f (cached tokens, the fullest R-worker)\n", "workload W",
         number(load["peak"]), number(load["limit"]), number(load["mean"]));
  Append(out, "%-22s %.0f; %.1f rows a pass\n", "steps", number(json["steps"]), number(json["mean_rows"]));
  Append(out, "%-22s S-worker %.1f %%, R-workers %.1f %%\n\nwhere the time went\n", "busy",
         100 * number(json["busy_share"]["s_worker"]), 100 * number(json["busy_share"]["r_workers"]));
  for (const auto& [key, value] : json["share"].items())
    Append(out, "  %-10s %5.1f %%\n", key.c_str(), 100 * number(value));
  return out;
}

}  // namespace fastdecode::sim
