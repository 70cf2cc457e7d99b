#include "cluster.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/config/config.h"
#include "common/host/launch_script.h"
#include "common/host/process.h"

namespace fastdecode {
namespace {

namespace fs = std::filesystem;

}  // namespace

Result<std::unique_ptr<Cluster>> Cluster::Up(const std::string& config, std::optional<bool> load_control,
                                             const std::atomic<int>& stop) {
  std::unique_ptr<Cluster> cluster(new Cluster);
  FD_ASSIGN_OR_RETURN(const LaunchScript launch, FindLaunchScript());
  cluster->config_ = config;
  if (load_control) FD_RETURN_IF_ERROR(cluster->WriteCopy(*load_control));
  FD_ASSIGN_OR_RETURN(
      const ProcessResult up,
      RunProcess({launch.script, "up", "--detach", "--build", launch.programs, cluster->config_}, false, &stop));
  if (up.status != 0) {
    return Status(up.status == 2 ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
                  "the cluster of " + config + " did not come up (fastdecode-cluster exited " +
                      std::to_string(up.status) +
                      "); one that is up already is measured with --connect and --secret_file");
  }
  cluster->script_ = launch.script;  // From here on there is something to take down.
  FD_ASSIGN_OR_RETURN(const ProcessResult status,
                      RunProcess({launch.script, "status", "--json", cluster->config_}, true));
  const bool allow_exceptions = false;
  const auto json = nlohmann::json::parse(status.output, nullptr, allow_exceptions);
  if (!json.is_object() || !json.value("up", false)) {
    return Unavailable("the cluster of " + config + " came up and is gone again");
  }
  cluster->address_ = json.value("sworker", "");
  cluster->secret_file_ = json.value("secret_file", "");
  return cluster;
}

Status Cluster::WriteCopy(bool load_control) {
  FD_ASSIGN_OR_RETURN(Config config, LoadConfig(config_));
  config.load_control.enabled = load_control;
  std::string pattern = (fs::temp_directory_path() / "fastdecode-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return Internal("no temporary folder " + pattern + ": " + std::strerror(errno));
  }
  folder_ = pattern;
  config_ = folder_ + "/config.json";
  std::ofstream file(config_);
  file << ConfigToJson(config);
  file.close();
  return file.good() ? OkStatus() : Internal(config_ + " can't be written");
}

Cluster::~Cluster() {
  if (!script_.empty()) (void)RunProcess({script_, "down", config_}, false);
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

}  // namespace fastdecode
