#include "rworker/self_test/host_report.h"

#include <fstream>

#include "kernels/dispatch.h"
#include "rworker/host_limits.h"
#include "rworker/read_bandwidth.h"

namespace fastdecode::rworker {
namespace {

std::string FirstLine(const std::string& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::string MiB(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

Finding Cpu(const CpuTopology& topology, const std::string& root) {
  std::ifstream cpuinfo(root + "/proc/cpuinfo");
  std::string model = "unknown";
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    model = line.substr(line.find(':') + 2);
    break;
  }
  Finding finding{"CPU", model + "; " + kernels::FeatureNames(kernels::DetectCpuFeatures()), ""};
  const int threads = AllowedThreads();
  finding.value +=
      "; " + std::to_string(topology.num_cpus()) + (topology.num_cpus() == 1 ? " CPU" : " CPUs") + " to run on";
  if (threads < topology.num_cpus()) {
    finding.value += ", " + std::to_string(threads) + " by the cgroup's quota";
    finding.fix =
        "a quota stops all threads in the middle of their work: give CPUs instead (docker run --cpuset-cpus, "
        "systemd AllowedCPUs=)";
  }
  return finding;
}

Finding Clock(const CpuTopology& topology, const std::string& root) {
  const std::string cpu = root + "/sys/devices/system/cpu/cpu" + std::to_string(topology.nodes.front().cpus.front());
  const std::string governor = FirstLine(cpu + "/cpufreq/scaling_governor");
  Finding finding{"clock", "governor " + governor, ""};
  if (governor.empty()) {
    finding.value = "governor not visible here, as in most virtual machines";
  } else {
    const std::string now = FirstLine(cpu + "/cpufreq/scaling_cur_freq");
    const std::string most = FirstLine(cpu + "/cpufreq/cpuinfo_max_freq");
    if (!now.empty() && !most.empty()) {
      finding.value += ", " + std::to_string(std::atoll(now.c_str()) / 1000) + " of " +
                       std::to_string(std::atoll(most.c_str()) / 1000) + " MHz at the moment";
    }
    if (governor != "performance") {
      finding.fix =
          "as root: cpupower frequency-set -g performance; others wake up slowly after each wait for the network";
    }
  }
  const std::string source = FirstLine(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!source.empty()) finding.value += "; time from " + source;
  if (source == "hpet" || source == "acpi_pm") {
    finding.fix += std::string(finding.fix.empty() ? "" : "; ") + "reading the time from " + source +
                   " takes microseconds: boot with tsc=reliable, or mend the firmware's clock";
  }
  return finding;
}

Finding HugePages(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/";
  const std::string mode = FirstLine(folder + "transparent_hugepage/enabled");
  const auto reserved = [&](const char* size) {
    const std::string pages = folder + "hugepages/hugepages-" + size + "/";
    const std::string all = FirstLine(pages + "nr_hugepages");
    return all.empty() ? std::string("none") : FirstLine(pages + "free_hugepages") + " of " + all + " free";
  };
  Finding finding{"huge pages",
                  "transparent: " + (mode.empty() ? "not in this kernel" : mode) + "; reserved: 2 MiB " +
                      reserved("2048kB") + ", 1 GiB " + reserved("1048576kB"),
                  ""};
  if (mode.find("[never]") != std::string::npos) {
    finding.fix = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return finding;
}

}  // namespace

std::vector<Finding> ReportHost(const CpuTopology& topology, const std::string& root) {
  const AvailableMemory memory = FindAvailableMemory(root);
  std::vector<Finding> findings = {Cpu(topology, root), Clock(topology, root)};
  findings.push_back({"memory", MiB(memory.bytes) + " available; the limit: " + memory.source, ""});
  findings.push_back({"NUMA", topology.ToString(), ""});
  if (topology.nodes.size() > 1) {
    findings.back().fix =
        "nothing to mend; two R-workers, one a node (--numa_node 0, --numa_node 1), are simpler to reason "
        "about, one over all needs fewer connections";
  }
  findings.push_back(HugePages(root));
  findings.push_back({"caches", MiB(LastLevelCacheBytes()) + " in the largest", ""});
  return findings;
}

}  // namespace fastdecode::rworker
