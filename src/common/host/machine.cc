#include "common/host/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace fastdecode {

nlohmann::ordered_json DescribeMachine() {
  std::string cpu = "unknown";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    cpu = line.substr(line.find(':') + 2);
    break;
  }
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof(usable), &usable);
  utsname name{};
  uname(&name);
  return {{"cpu", cpu},
          {"cpus", CPU_COUNT(&usable)},
          {"memory_bytes", int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)},
          {"kernel", std::string(name.sysname) + " " + name.release}};
}

}  // namespace fastdecode
