// fastdecode-plan: what a deployment will do before it is bought: flags -> command.
#include <gflags/gflags.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/logging.h"
#include "common/flags/parse_flags.h"
#include "plan/measure/measure_command.h"
#include "plan/measure/read_rate.h"

DEFINE_string(config, "", "measure: the deployments' JSON files, with commas between");
DEFINE_string(out, "", "measure: the profile to write; entries of other models that it has stay");
DEFINE_bool(rworkers_up, false, "measure: the configs' R-workers are up already; else the launch script starts them");
DEFINE_double(seconds, 150, "measure: time for one model, about. read: time for all");
DEFINE_int32(threads, 1, "read: threads that read memory");

namespace fastdecode::plan {
namespace {

constexpr int kExitOk = 0, kExitUsage = 2, kExitWorker = 3;

std::atomic<int> stop_signal{0};
void OnSignal(int signal) { stop_signal.store(signal); }

int Fail(const Status& status) {
  std::fprintf(stderr, "fastdecode-plan: %s\n", status.message().c_str());
  const bool usage = status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ||
                     status.code() == StatusCode::kPermissionDenied || status.code() == StatusCode::kUnimplemented;
  return usage ? kExitUsage : kExitWorker;
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

int Measure() {
  const MeasureCommand command{.configs = SplitCommas(FLAGS_config),
                               .out = FLAGS_out,
                               .rworkers_are_up = FLAGS_rworkers_up,
                               .seconds = FLAGS_seconds};
  if (command.configs.empty() || command.out.empty()) return Fail(InvalidArgument("measure needs --config and --out"));
  if (!(FLAGS_seconds >= 1 && FLAGS_seconds <= 3600)) return Fail(InvalidArgument("--seconds is out of 1 to 3600"));
  const Status status = RunMeasure(command, stop_signal);
  return status.ok() ? kExitOk : Fail(status);
}

int Read() {
  if (FLAGS_threads < 1 || FLAGS_threads > 4096) return Fail(InvalidArgument("--threads is out of 1 to 4096"));
  const Result<ReadRate> rate = MeasureReadBandwidth(FLAGS_threads, std::min(FLAGS_seconds, 10.0));
  if (!rate.ok()) return Fail(rate.status());
  const nlohmann::ordered_json json = {{"name", "read_bandwidth"},
                                       {"case", {{"threads", FLAGS_threads}, {"method", rate->method}}},
                                       {"unit", "GB/s"},
                                       {"median", rate->bytes_per_s / 1e9},
                                       {"spread", rate->spread}};
  std::printf("%s\n", json.dump().c_str());
  return kExitOk;
}

int Main(const std::string& command) {
  struct sigaction action {};
  action.sa_handler = &OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // A second one ends us at once.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (command == "measure") return Measure();
  if (command == "read") return Read();
  return Fail(InvalidArgument("give one command: measure or read; --help says what they do"));
}

}  // namespace
}  // namespace fastdecode::plan

int main(int argc, char** argv) {
  fastdecode::InitLogging(argv[0]);
  const fastdecode::ProgramText text{
      .name = "fastdecode-plan",
      .usage =
          "plans a deployment (docs/planning.md)\n"
          "  fastdecode-plan measure --config F[,F...] --out PROFILE\n"
          "      measures the parts of the deployments on this machine and its R-workers\n"
          "  fastdecode-plan read [--threads N]   the read bandwidth of this machine's memory, as JSON\n"
          "Exit status: 0 done; 2 usage, config or profile; 3 a worker could not start or was lost."};
  std::string command;
  if (argc > 1 && argv[1][0] != '-') {  // before the flags, which know no other arguments
    command = argv[1];
    argv[1] = argv[0];
    ++argv;
    --argc;
  }
  if (auto exit = fastdecode::ParseFlags(text, &argc, &argv)) return *exit;
  return fastdecode::plan::Main(command);
}
