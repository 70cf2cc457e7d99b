#include "rworker/page_usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "fake_root.h"

namespace fastdecode::rworker {
namespace {

using testing::HasSubstr;

constexpr char kSmaps[] =
    "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n"
    "Size:               4096 kB\nKernelPageSize:        4 kB\nRss:                4096 kB\n"
    "AnonHugePages:      2048 kB\nVmFlags: rd wr mr mw me ac sd hg \n"
    "7f0000400000-7f0000800000 rw-p 00000000 00:00 0 \n"
    "Rss:                1024 kB\nAnonHugePages:         0 kB\n"
    "7f0000800000-7f0000a00000 rw-p 00000000 00:0f 99  /anon_hugepage (deleted)\n"
    "Rss:                   0 kB\nShared_Hugetlb:        0 kB\nPrivate_Hugetlb:    2048 kB\n"
    "7f0000a00000-7f0000b00000 rw-p 00000000 00:00 0          [stack]\n"
    "Rss:                1000 kB\nAnonHugePages:      1000 kB\n";

TEST(PageUsage, SumsTheMappingsOfTheRange) {
  const auto sum = [](uintptr_t begin, int64_t bytes) {
    std::istringstream smaps(kSmaps);
    return SumPageUsage(smaps, begin, bytes);
  };
  const PageUsage two = sum(0x7f0000000000, 0x800000);
  EXPECT_EQ(two.resident_bytes, 5 << 20);
  EXPECT_EQ(two.huge_bytes, 2 << 20);
  const PageUsage reserved = sum(0x7f0000800000, 0x200000);
  EXPECT_EQ(reserved.resident_bytes, 2 << 20);
  EXPECT_EQ(reserved.huge_bytes, 2 << 20);
  const PageUsage part = sum(0x7f0000300000, 0x200000);  // 1 MiB of the first, 1 MiB of the second
  EXPECT_EQ(part.resident_bytes, 2 << 20);
  EXPECT_EQ(part.huge_bytes, 1 << 20);
  EXPECT_EQ(sum(0x7f0000c00000, 0x200000).resident_bytes, 0);
}

TEST(PageUsage, OfThisProcessIsWhatWasTouched) {
  std::vector<std::byte> memory(64 << 20, std::byte{1});
  EXPECT_EQ(ReadPageUsage(nullptr, 4096).resident_bytes, 0);
  EXPECT_GT(ReadPageUsage(memory.data(), 64 << 20).resident_bytes, 0);
  EXPECT_LE(ReadPageUsage(memory.data(), 64 << 20).resident_bytes, 64 << 20);
}

TEST(HugePageHint, NamesTheFileAndTheNumber) {
  FakeRoot root;
  EXPECT_THAT(HugePageHint(5 << 20, root.path()), HasSubstr("no transparent huge pages"));
  EXPECT_THAT(HugePageHint(5 << 20, root.path()), HasSubstr("vm.nr_hugepages=3"));
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_THAT(HugePageHint(1 << 20, root.path()),
              HasSubstr("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"));
  root.Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_THAT(HugePageHint(1 << 20, root.path()), HasSubstr("compact_memory"));
}

}  // namespace
}  // namespace fastdecode::rworker
