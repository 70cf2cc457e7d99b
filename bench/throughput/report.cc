#include "report.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "common/host/machine.h"
#include "summary.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kBarCells = 40;

struct ShareName {
  const char* key;
  const char* text;
};
constexpr std::array<ShareName, 6> kShares = {{{"s_part", "S-part"},
                                               {"r_part", "R-part"},
                                               {"wire", "wire"},
                                               {"copy", "copy"},
                                               {"scheduler", "scheduler"},
                                               {"idle", "idle"}}};

[[gnu::format(printf, 2, 3)]] void Append(std::string& out, const char* format, ...) {
  std::array<char, 512> buffer;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  out += buffer.data();
}

void AppendSummary(std::string& out, const char* name, const ordered_json& json) {
  const Summary s = SummaryFromJson(nlohmann::json::parse(json.dump()));
  Append(out, "%-22s %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, s.mean, s.p50, s.p90, s.p99, s.max);
}

std::string Lengths(const Workload& workload) {
  const auto [shortest, longest] =
      std::minmax_element(workload.requests.begin(), workload.requests.end(),
                          [](const auto& a, const auto& b) { return a.prompt_tokens < b.prompt_tokens; });
  const auto [least, most] =
      std::minmax_element(workload.requests.begin(), workload.requests.end(),
                          [](const auto& a, const auto& b) { return a.output_tokens < b.output_tokens; });
  const auto range = [](int low, int high) {
    return low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
  };
  return "prompts of " + range(shortest->prompt_tokens, longest->prompt_tokens) + ", answers of " +
         range(least->output_tokens, most->output_tokens) + " tokens, " +
         (workload.in_flight > 0 ? std::to_string(workload.in_flight) + " in flight" : "as they arrive");
}

}  // namespace

ordered_json ToJson(const Measured& measured, const Workload& workload) {
  const json window = measured.server.value("window", json::object());
  const auto output = static_cast<double>(measured.output_tokens);
  ordered_json share = ordered_json::object();
  for (const ShareName& name : kShares) share[name.key] = window.value("share", json::object()).value(name.key, 0.0);
  const json load = window.value("workload", json::object());
  ordered_json report = {
      {"tokens_per_s", measured.wall_s > 0 ? output / measured.wall_s : 0},
      {"requests", measured.requests},
      {"failed", measured.failed},
      {"prompt_tokens", measured.prompt_tokens},
      {"output_tokens", measured.output_tokens},
      {"wall_s", measured.wall_s},
      {"asked_for", Lengths(workload)},
      {"ttft_ms", ToJson(Summarize(measured.ttft_ms))},
      {"itl_ms", ToJson(Summarize(measured.itl_ms))},
      {"steps", window.value("steps", int64_t{0})},
      {"step_ms", ToJson(SummaryFromJson(window.value("step_ms", json::object())))},
      {"share", std::move(share)},
      {"workload",
       {{"peak", load.value("peak", 0.0)}, {"limit", load.value("limit", 0.0)}, {"mean", load.value("mean", 0.0)}}},
      {"wire_bytes_per_token", output > 0 ? window.value("wire_bytes", 0.0) / output : 0},
      {"failures", measured.failures},
      {"window", window},
      {"config", measured.server.value("config", json::object())},
      {"machine", DescribeMachine()},
  };
  return report;
}

std::string Bar(double share, int cells) {
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::clamp(share, 0.0, 1.0) * cells * 8 + 0.5);
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[static_cast<size_t>(eighths % 8)];
  for (int i = (eighths + 7) / 8; i < cells; ++i) bar += "·";
  return bar;
}

std::string Table(const ordered_json& report) {
  const auto number = [&](const char* name) { return report[name].get<double>(); };
  std::string out;
  Append(out, "\n%.1f tokens/s   %.0f requests, %.0f failed, %.2f s\n", number("tokens_per_s"), number("requests"),
         number("failed"), number("wall_s"));
  Append(out, "%s\n", report["asked_for"].get<std::string>().c_str());
  Append(out, "%.0f prompt and %.0f output tokens\n\n", number("prompt_tokens"), number("output_tokens"));
  Append(out, "%-22s %9s %9s %9s %9s %9s\n", "milliseconds", "mean", "p50", "p90", "p99", "max");
  AppendSummary(out, "to the first token", report["ttft_ms"]);
  AppendSummary(out, "between two tokens", report["itl_ms"]);
  AppendSummary(out, "a step", report["step_ms"]);
  const ordered_json& window = report["window"];
  const ordered_json busy = window.value("busy_ms", ordered_json::object());
  const double sum = busy.value("s_worker", 0.0) + busy.value("r_worker", 0.0);
  if (sum > 0) {
    Append(out, "%-22s %9.2f S + %.2f R; a step takes %.2f of their sum\n", "busy a step", busy.value("s_worker", 0.0),
           busy.value("r_worker", 0.0), report["step_ms"]["mean"].get<double>() / sum);
  }
  const ordered_json& load = report["workload"];
  const double limit = load["limit"].get<double>();
  const std::string most = limit > 0 ? "of at most " + std::to_string(static_cast<int64_t>(limit)) : "without a limit";
  Append(out, "\n%-22s peak %.0f %s, mean %.0f (cached tokens, the fullest R-worker)\n", "workload W",
         load["peak"].get<double>(), most.c_str(), load["mean"].get<double>());
  Append(out, "%-22s %.0f bytes a token\n", "on the wire", number("wire_bytes_per_token"));
  Append(out, "%-22s %.0f\n\nwhere the time went\n", "steps", number("steps"));
  for (const ShareName& name : kShares) {
    const double share = report["share"][name.key].get<double>();
    Append(out, "  %-10s %s %5.1f %%\n", name.text, Bar(share, kBarCells).c_str(), 100 * share);
  }
  return out;
}

}  // namespace fastdecode
