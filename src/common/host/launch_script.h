// Where fastdecode-cluster and the programs that it starts lie.
#pragma once

#include <string>

#include "common/base/status.h"

namespace fastdecode {

struct LaunchScript {
  std::string script;    // fastdecode-cluster
  std::string programs;  // the folder of this program and the others
};

// Installed the script lies beside the programs; in a build tree in the repository's scripts/launch.
Result<LaunchScript> FindLaunchScript();

}  // namespace fastdecode
