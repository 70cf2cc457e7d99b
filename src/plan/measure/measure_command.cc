#include "plan/measure/measure_command.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "common/base/clock.h"
#include "common/host/machine.h"
#include "plan/measure/measure.h"
#include "plan/measure/read_rate.h"
#include "plan/measure/rworkers_up.h"
#include "plan/profile.h"
#include "sworker/device/torch_setup.h"

namespace fastdecode::plan {
namespace {

constexpr double kReadSeconds = 6;  // at most

void Say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

Result<Profile> Begun(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    // Said before minutes of measuring.
    const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
    if (access(folder.c_str(), W_OK) == 0) return Profile{};
    return InvalidArgument("--out " + path + " can't be written: " + std::strerror(errno));
  }
  Result<Profile> profile = LoadProfile(path);
  if (!profile.ok()) {
    return Status(profile.status().code(),
                  profile.status().message() + "\n--out adds to a profile that is there: remove it or name another");
  }
  return profile;
}

void Replace(Profile* profile, ModelProfile model) {
  for (ModelProfile& have : profile->models) {
    if (have.key != model.key) continue;
    have = std::move(model);
    return;
  }
  profile->models.push_back(std::move(model));
}

Result<MachineProfile> ThisMachine(double seconds) {
  const auto described = DescribeMachine();
  MachineProfile machine;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) == 0) machine.hostname = name;
  machine.cpu = described.value("cpu", "");
  machine.kernel = described.value("kernel", "");
  machine.cpus = described.value("cpus", 0);
  machine.memory_bytes = described.value("memory_bytes", int64_t{0});
  const Result<ReadRate> rate = MeasureReadBandwidth(1, std::min(seconds, kReadSeconds));
  if (rate.ok()) {
    machine.read_bytes_per_s = rate->bytes_per_s;
    char line[160];
    std::snprintf(line, sizeof(line), "memory: one thread reads %.1f GB/s (%s)", rate->bytes_per_s / 1e9,
                  rate->method.c_str());
    Say(line);
  } else {
    Say("memory: not measured, " + rate.status().message());
  }
  return machine;
}

Result<ModelProfile> MeasureOne(const std::string& path, const MeasureCommand& command, const std::atomic<int>& stop) {
  std::unique_ptr<RWorkersUp> up;
  std::string effective = path;
  cpu_set_t before;
  sched_getaffinity(0, sizeof(before), &before);
  if (!command.rworkers_are_up) {
    FD_ASSIGN_OR_RETURN(up, RWorkersUp::Start(path, stop));
    effective = up->effective_config();
    FD_RETURN_IF_ERROR(up->BindToSWorkerCpus());
  }
  Result<Config> config = LoadConfig(effective);
  Result<ModelProfile> model = Unavailable("not measured");
  if (!config.ok()) {
    model = config.status();
  } else if (config->rworkers.hosts.empty()) {
    model = InvalidArgument(path +
                            ": has rworkers.count, whose ports only the launch script knows: leave --rworkers_up out");
  } else {
    model = MeasureModel(*config, {.seconds = command.seconds, .progress = Say, .client_cpus = &before}, stop);
  }
  sched_setaffinity(0, sizeof(before), &before);
  return model;
}

}  // namespace

Status RunMeasure(const MeasureCommand& command, const std::atomic<int>& stop) {
  FD_ASSIGN_OR_RETURN(Profile profile, Begun(command.out));
  InitTorch();
  const int64_t start_ns = NowNs();
  FD_ASSIGN_OR_RETURN(profile.machine, ThisMachine(command.seconds));
  profile.fastdecode_version = FASTDECODE_VERSION;
  profile.libtorch_version = LibtorchVersion();
  for (const std::string& path : command.configs) {
    Result<ModelProfile> model = MeasureOne(path, command, stop);
    if (!model.ok()) return Status(model.status().code(), path + ": " + model.status().message());
    profile.machine.device = model->key.device;
    Replace(&profile, std::move(*model));
    profile.measured_seconds = static_cast<double>(NowNs() - start_ns) / 1e9;
    if (const Status checked = CheckProfile(profile); !checked.ok()) {
      return Internal("what was measured cannot be true: " + checked.message());
    }
    FD_RETURN_IF_ERROR(SaveProfile(profile, command.out));
    if (stop.load() != 0) return Status(StatusCode::kCancelled, "interrupted");
  }
  char line[64];
  std::snprintf(line, sizeof(line), " after %.0f s", profile.measured_seconds);
  Say("wrote " + command.out + line);
  return OkStatus();
}

}  // namespace fastdecode::plan
