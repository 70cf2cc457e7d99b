#include "rworker/host_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_root.h"

namespace fastdecode::rworker {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(AvailableMemory, IsThatOfThisHost) {
  const AvailableMemory here = FindAvailableMemory();
  EXPECT_GT(here.bytes, kMiB);
  EXPECT_LT(here.bytes, int64_t{1} << 50);
}

TEST(AvailableMemory, WithoutALimitIsWhatIsFree) {
  FakeRoot root;
  root.Write("proc/meminfo", "MemTotal:  4096 kB\nMemFree:  10 kB\nMemAvailable:    2048 kB\n");
  root.Write("proc/self/cgroup", "0::/a\n");
  root.Write("sys/fs/cgroup/a/memory.max", "max\n");
  root.Write("sys/fs/cgroup/a/memory.current", "5000\n");
  const AvailableMemory found = FindAvailableMemory(root.path());
  EXPECT_EQ(found.bytes, 2 * kMiB);
  EXPECT_THAT(found.source, HasSubstr("MemAvailable"));
}

// A limit of any cgroup on the way up holds; what is cached of files can be dropped.
TEST(AvailableMemory, IsTheTightestCgroupsLessWhatItUses) {
  FakeRoot root;
  root.Write("proc/meminfo", "MemAvailable:    1048576 kB\n");
  root.Write("proc/self/cgroup", "0::/job/step\n");
  root.Write("sys/fs/cgroup/job/step/memory.max", std::to_string(900 * kMiB));
  root.Write("sys/fs/cgroup/job/step/memory.current", std::to_string(100 * kMiB));
  root.Write("sys/fs/cgroup/job/memory.max", std::to_string(600 * kMiB));
  root.Write("sys/fs/cgroup/job/memory.current", std::to_string(300 * kMiB));
  root.Write("sys/fs/cgroup/job/memory.stat",
             "anon 1\ninactive_file " + std::to_string(200 * kMiB) + "\nactive_file 9\n");
  const AvailableMemory found = FindAvailableMemory(root.path());
  EXPECT_EQ(found.bytes, 500 * kMiB);
  EXPECT_THAT(found.source, HasSubstr("memory.max is 600 MiB, of which 100 MiB are in use"));
  EXPECT_THAT(found.source, HasSubstr("/sys/fs/cgroup/job/memory.max"));
  root.Write("sys/fs/cgroup/job/memory.current", std::to_string(900 * kMiB));
  EXPECT_EQ(FindAvailableMemory(root.path()).bytes, 0);
}

}  // namespace
}  // namespace fastdecode::rworker
