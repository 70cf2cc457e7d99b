#include "common/host/launch_script.h"

#include <filesystem>

namespace fastdecode {

namespace fs = std::filesystem;

Result<LaunchScript> FindLaunchScript() {
  std::error_code error;
  const fs::path programs = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return Internal("this program's own folder can't be found: " + error.message());
  for (const fs::path& path : {programs / "fastdecode-cluster", programs.parent_path().parent_path().parent_path() /
                                                                    "scripts/launch/fastdecode-cluster"}) {
    if (fs::exists(path)) return LaunchScript{path.string(), programs.string()};
  }
  return NotFound("no fastdecode-cluster beside " + programs.string() +
                  " or in the repository's scripts/launch: bring the cluster up yourself and connect to it");
}

}  // namespace fastdecode
