// fastdecode-bench: throughput of a whole deployment, as its clients see it.
//
// Unit: output tokens a second, over the time from the first request sent to the last
// answered. Beside it, from the S-worker's own clock over the same time: step times, the
// shares of the critical path, the workload W against its limit. The limit to compare
// with is the larger of the S- and R-part's busy times a step: overlap hides the other.
#include <gflags/gflags.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <optional>

#include "cluster.h"
#include "common/base/logging.h"
#include "common/config/secret.h"
#include "common/flags/parse_flags.h"
#include "driver.h"
#include "plan_comparison.h"
#include "report.h"
#include "workload.h"

DEFINE_string(config, "", "bring this deployment up for the measurement, and down again");
DEFINE_string(connect, "", "or measure the S-worker that answers at HOST:PORT");
DEFINE_string(secret_file, "", "with --connect: the cluster's secret");
DEFINE_int32(batch, 0, "sequences in flight (0: the S-worker's max_batch)");
DEFINE_int32(prompt_tokens, 0, "length of every prompt");
DEFINE_int32(output_tokens, 0, "length of every answer");
DEFINE_string(trace, "", "or the lengths of this trace: Azure CSV or Mooncake JSONL");
DEFINE_double(rate, 0, "with --trace: its arrivals, this many times as fast (0: keep --batch in flight)");
DEFINE_int32(requests, 0, "how many (0: the whole trace, or twice the batch)");
DEFINE_string(load_control, "", "on or off, whatever the config says; needs --config");
DEFINE_bool(decode_only, false, "--batch requests, and measure only while all of them decode: no prefill, no ramp");
DEFINE_string(measure, "", "FROM:TO, measure between these shares of requests ended, and cancel the rest (empty: all)");
DEFINE_string(compare_plan, "", "also say what fastdecode-plan's profile in this file predicts, and what differs");
DEFINE_string(json, "", "also write the result to this file");
DEFINE_uint64(seed, 1, "of the prompts' random ids");

namespace fastdecode {
namespace {

constexpr int kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitLost = 3;

std::atomic<int> stop_signal{0};

void OnSignal(int signal) { stop_signal.store(signal); }

int Fail(int code, const std::string& message) {
  std::fprintf(stderr, "fastdecode-bench: %s\n", message.c_str());
  return code;
}

int Fail(const Status& status) {
  const bool usage = status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ||
                     status.code() == StatusCode::kPermissionDenied;
  return Fail(usage ? kExitUsage : kExitLost, status.message());
}

Status CheckFlags() {
  if (FLAGS_config.empty() == FLAGS_connect.empty()) return InvalidArgument("give one of --config and --connect");
  if (!FLAGS_connect.empty() && FLAGS_secret_file.empty()) return InvalidArgument("--connect needs --secret_file");
  if (!FLAGS_load_control.empty() && FLAGS_load_control != "on" && FLAGS_load_control != "off") {
    return InvalidArgument("--load_control is '" + FLAGS_load_control + "': expected on or off");
  }
  if (!FLAGS_load_control.empty() && FLAGS_config.empty()) return InvalidArgument("--load_control needs --config");
  const bool fixed = FLAGS_prompt_tokens > 0 && FLAGS_output_tokens > 0;
  if (FLAGS_trace.empty() && !fixed) {
    return InvalidArgument("give --prompt_tokens and --output_tokens, both above 0, or --trace");
  }
  if (!FLAGS_trace.empty() && (FLAGS_prompt_tokens != 0 || FLAGS_output_tokens != 0)) {
    return InvalidArgument("--trace has its own lengths: leave --prompt_tokens and --output_tokens out");
  }
  if (FLAGS_batch < 0 || FLAGS_requests < 0 || !(FLAGS_rate >= 0)) {
    return InvalidArgument("--batch, --requests and --rate can't be negative");
  }
  if (FLAGS_decode_only && (!FLAGS_trace.empty() || FLAGS_requests != 0)) {
    return InvalidArgument("--decode_only takes --batch requests of fixed lengths: leave --trace and --requests out");
  }
  if (FLAGS_decode_only && !FLAGS_measure.empty())
    return InvalidArgument("--decode_only and --measure exclude each other");
  if (FLAGS_rate > 0 && FLAGS_trace.empty()) return InvalidArgument("--rate needs --trace");
  if (FLAGS_rate > 0 && FLAGS_batch > 0) return InvalidArgument("--rate and --batch exclude each other");
  return OkStatus();
}

Result<MeasuredPart> PartOfFlags() {
  MeasuredPart part;
  part.decode_only = FLAGS_decode_only;
  if (FLAGS_measure.empty()) return part;
  int used = 0;
  const bool parsed = std::sscanf(FLAGS_measure.c_str(), "%lf:%lf%n", &part.from, &part.to, &used) == 2 &&
                      used == static_cast<int>(FLAGS_measure.size());
  if (parsed && part.from >= 0 && part.from < part.to && part.to <= 1) return part;
  return InvalidArgument("--measure is '" + FLAGS_measure + "': expected FROM:TO with 0 <= FROM < TO <= 1");
}

// The exit status. `report` is filled once there is something to report.
int Measure(const std::string& address, const std::string& secret_file, const MeasuredPart& part,
            nlohmann::ordered_json* report) {
  const Result<Secret> secret = LoadSecret(secret_file);
  if (!secret.ok()) return Fail(secret.status());
  auto client = ApiClient::Connect(address, secret->key, "fastdecode-bench, pid " + std::to_string(getpid()));
  if (!client.ok()) return Fail(client.status());
  const WorkloadOptions options = {.trace = FLAGS_trace,
                                   .prompt_tokens = FLAGS_prompt_tokens,
                                   .output_tokens = FLAGS_output_tokens,
                                   .requests = FLAGS_requests,
                                   .batch = FLAGS_batch,
                                   .rate = FLAGS_rate,
                                   .seed = FLAGS_seed};
  Result<Workload> workload = MakeWorkload(options, (*client)->info());
  if (!workload.ok()) return Fail(workload.status());
  if (FLAGS_decode_only) workload->requests.resize(static_cast<size_t>(workload->in_flight));
  std::optional<PlanComparison> plan;
  if (!FLAGS_compare_plan.empty()) {
    const auto stats = (*client)->Stats(/*reset=*/false);
    if (!stats.ok()) return Fail(stats.status());
    auto comparison = PlanComparison::Make(*stats, FLAGS_compare_plan);
    if (!comparison.ok()) return Fail(comparison.status());
    plan = std::move(*comparison);
  }
  Driver driver(**client, stop_signal);
  if (const Status warm = driver.WarmUp(*workload, FLAGS_seed); !warm.ok()) return Fail(warm);
  const Measured measured = driver.Run(*workload, FLAGS_seed, isatty(STDERR_FILENO) == 1, part);
  *report = ToJson(measured, *workload);
  std::fputs(Table(*report).c_str(), stdout);
  if (plan && measured.lost.ok()) {
    const plan::Comparison comparison = plan->Compare(*report, measured, *workload, FLAGS_decode_only);
    (*report)["plan"] = ToJson(comparison);
    std::printf("\n%s", plan::Describe(comparison).c_str());
  }
  if (!measured.lost.ok()) return Fail(kExitLost, measured.lost.message());
  if (stop_signal.load() != 0) return Fail(128 + stop_signal.load(), "interrupted");
  if (measured.failed > 0) {
    return Fail(kExitFailed,
                std::to_string(measured.failed) + " requests failed; the first: " + measured.first_failure);
  }
  return kExitOk;
}

int Main() {
  if (const Status status = CheckFlags(); !status.ok()) return Fail(status);
  const Result<MeasuredPart> part = PartOfFlags();
  if (!part.ok()) return Fail(part.status());
  struct sigaction action {};
  action.sa_handler = &OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // A second one ends us at once.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);

  nlohmann::ordered_json report;
  int code = kExitOk;
  if (!FLAGS_connect.empty()) {
    code = Measure(FLAGS_connect, FLAGS_secret_file, *part, &report);
  } else {
    std::optional<bool> load_control;
    if (!FLAGS_load_control.empty()) load_control = FLAGS_load_control == "on";
    auto cluster = Cluster::Up(FLAGS_config, load_control, stop_signal);
    if (!cluster.ok()) return Fail(cluster.status());
    code = Measure((*cluster)->address(), (*cluster)->secret_file(), *part, &report);
  }
  if (FLAGS_json.empty() || report.is_null()) return code;
  std::ofstream file(FLAGS_json);
  file << report.dump(2) << "\n";
  file.close();
  return file.good() ? code : Fail(kExitUsage, FLAGS_json + " can't be written");
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{
      .name = "fastdecode-bench",
      .usage =
          "throughput of a deployment\n"
          "  fastdecode-bench --config F | --connect HOST:PORT --secret_file F\n"
          "      --batch N --prompt_tokens N --output_tokens N [--requests N]  |  --trace F [--rate X] [--requests N]\n"
          "      [--decode_only | --measure FROM:TO] [--load_control on|off] [--compare_plan PROFILE] [--json F]\n"
          "Exit status: 0 done; 1 some requests failed; 2 usage; 3 no server, or none any more."};
  if (auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  return fastdecode::Main();
}
