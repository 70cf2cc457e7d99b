#include "plan/measure/rworkers_up.h"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/host/launch_script.h"
#include "common/host/process.h"

namespace fastdecode::plan {

Result<std::unique_ptr<RWorkersUp>> RWorkersUp::Start(const std::string& config, const std::atomic<int>& stop) {
  FD_ASSIGN_OR_RETURN(const LaunchScript launch, FindLaunchScript());
  std::unique_ptr<RWorkersUp> up(new RWorkersUp);
  FD_ASSIGN_OR_RETURN(const ProcessResult started, RunProcess({launch.script, "up", "--detach", "--rworkers-only",
                                                               "--build", launch.programs, config},
                                                              false, &stop));
  if (started.status != 0) {
    return Status(started.status == 2 ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
                  "the R-workers of " + config + " did not come up (fastdecode-cluster exited " +
                      std::to_string(started.status) + "); take a cluster that is up down first");
  }
  up->script_ = launch.script;
  up->config_ = config;
  FD_ASSIGN_OR_RETURN(const ProcessResult status, RunProcess({launch.script, "status", "--json", config}, true));
  const auto json = nlohmann::json::parse(status.output, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.value("up", false)) {
    return Unavailable("the R-workers of " + config + " came up and are gone again");
  }
  up->effective_config_ = json.value("effective_config", "");
  up->cpus_ = json.value("sworker_cpus", "-");
  return up;
}

RWorkersUp::~RWorkersUp() {
  if (!script_.empty()) (void)RunProcess({script_, "down", config_}, false);
}

Status RWorkersUp::BindToSWorkerCpus() const {
  if (cpus_ == "-") return OkStatus();
  cpu_set_t set;
  CPU_ZERO(&set);
  std::istringstream runs(cpus_);  // "0-2,5"
  for (std::string run; std::getline(runs, run, ',');) {
    const size_t dash = run.find('-');
    const int first = std::stoi(run);
    const int last = dash == std::string::npos ? first : std::stoi(run.substr(dash + 1));
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &set);
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return Internal("this process can't be bound to CPU " + cpus_ + ": " + std::strerror(errno));
  }
  return OkStatus();
}

}  // namespace fastdecode::plan
