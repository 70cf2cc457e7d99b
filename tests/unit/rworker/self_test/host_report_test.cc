#include "rworker/self_test/host_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rworker/host_limits.h"
#include "tests/unit/rworker/fake_root.h"

namespace fastdecode::rworker {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

Finding Named(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return finding;
  }
  ADD_FAILURE() << "no finding " << name;
  return {};
}

TEST(HostReport, SaysWhatToMend) {
  FakeRoot root;
  root.Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU 9000\n");
  root.Write("proc/meminfo", "MemAvailable: 2048 kB\n");
  root.Write("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n");
  root.Write("sys/devices/system/cpu/cpu3/cpufreq/scaling_cur_freq", "1200000\n");
  root.Write("sys/devices/system/cpu/cpu3/cpufreq/cpuinfo_max_freq", "3100000\n");
  root.Write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  root.Write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "100\n");
  root.Write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "60\n");
  const CpuTopology topology{{{0, {3}, -1}, {1, {4}, -1}}};
  const std::vector<Finding> findings = ReportHost(topology, root.path());
  EXPECT_THAT(Named(findings, "CPU").value, HasSubstr("Test CPU 9000"));
  const Finding clock = Named(findings, "clock");
  EXPECT_THAT(clock.value, HasSubstr("governor powersave, 1200 of 3100 MHz"));
  EXPECT_THAT(clock.fix, HasSubstr("cpupower frequency-set -g performance"));
  EXPECT_THAT(clock.fix, HasSubstr("hpet"));
  EXPECT_THAT(Named(findings, "memory").value, HasSubstr("2 MiB available"));
  EXPECT_THAT(Named(findings, "NUMA").value, HasSubstr("NUMA node 0: CPUs 3; 1: CPUs 4"));
  const Finding pages = Named(findings, "huge pages");
  EXPECT_THAT(pages.value, HasSubstr("2 MiB 60 of 100 free, 1 GiB none"));
  EXPECT_THAT(pages.fix, HasSubstr("echo madvise"));
}

TEST(HostReport, LeavesAloneWhatIsFine) {
  FakeRoot root;
  root.Write("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "performance\n");
  root.Write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const std::vector<Finding> findings = ReportHost(FlatTopology({3}), root.path());
  for (const char* name : {"clock", "memory", "NUMA", "huge pages", "caches"}) {
    EXPECT_THAT(Named(findings, name).fix, IsEmpty()) << name;
  }
}

TEST(HostReport, WorksOnThisHost) {
  for (const Finding& finding : ReportHost(ReadCpuTopology(AllowedCpus()))) {
    EXPECT_FALSE(finding.name.empty());
    EXPECT_FALSE(finding.value.empty()) << finding.name;
  }
}

}  // namespace
}  // namespace fastdecode::rworker
