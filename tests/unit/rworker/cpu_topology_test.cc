#include "rworker/cpu_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_root.h"
#include "rworker/host_limits.h"

namespace fastdecode::rworker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two sockets of four CPUs, whose numbers take turns; node 2 has memory and no CPU.
class Topology : public testing::Test {
 protected:
  Topology() {
    root_.Write("sys/devices/system/node/online", "0-2\n");
    root_.Write("sys/devices/system/node/has_memory", "0-2\n");
    root_.Write("sys/devices/system/node/node0/cpulist", "0,2,4,6\n");
    root_.Write("sys/devices/system/node/node1/cpulist", "1,3,5,7\n");
    root_.Write("sys/devices/system/node/node2/cpulist", "\n");
    root_.Write("sys/devices/system/node/node0/distance", "10 21 17\n");
    root_.Write("sys/devices/system/node/node1/distance", "21 10 28\n");
    root_.Write("sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal:  9000 kB\nNode 1 MemFree:  1000 kB\nNode 1 Inactive(file):  20 kB\n"
                "Node 1 SReclaimable:  4 kB\n");
    root_.Write("proc/self/status", "Name:\tx\nMems_allowed:\t7\nMems_allowed_list:\t0-2\n");
  }
  CpuTopology Read(const std::vector<int>& cpus) const { return ReadCpuTopology(cpus, root_.path()); }

  FakeRoot root_;
};

TEST_F(Topology, HasTheNodesOfTheCpusAllowed) {
  const CpuTopology all = Read({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(all.nodes.size(), 2u);
  EXPECT_EQ(all.nodes[0].id, 0);
  EXPECT_THAT(all.nodes[0].cpus, ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(all.nodes[0].available_bytes, -1);
  EXPECT_EQ(all.nodes[1].id, 1);
  EXPECT_THAT(all.nodes[1].cpus, ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(all.nodes[1].available_bytes, 1024 * 1024);
  EXPECT_EQ(all.num_cpus(), 8);
  EXPECT_EQ(all.ToString(), "NUMA node 0: CPUs 0,2,4,6; 1: CPUs 1,3,5,7, 1 MiB free");
  // A mask that leaves one: its memory is still to be near.
  const CpuTopology half = Read({3, 5});
  ASSERT_EQ(half.nodes.size(), 1u);
  EXPECT_EQ(half.nodes[0].id, 1);
  EXPECT_THAT(half.nodes[0].cpus, ElementsAre(3, 5));
}

TEST_F(Topology, CpusWithoutMemoryOfTheirOwnCountToTheNearestNode) {
  root_.Write("proc/self/status", "Mems_allowed_list:\t1-2\n");
  const CpuTopology topology = Read({0, 1, 2});
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_EQ(topology.nodes[0].id, 1);
  EXPECT_THAT(topology.nodes[0].cpus, ElementsAre(1));
  EXPECT_EQ(topology.nodes[1].id, 2);
  EXPECT_THAT(topology.nodes[1].cpus, ElementsAre(0, 2));
}

TEST_F(Topology, OneNodeIsBoundNowhere) {
  root_.Write("proc/self/status", "Mems_allowed_list:\t0\n");
  EXPECT_EQ(Read({0, 1}).ToString(), "one NUMA node, CPUs 0-1");
  FakeRoot bare;
  EXPECT_EQ(ReadCpuTopology({4, 5, 6, 9}, bare.path()).ToString(), "one NUMA node, CPUs 4-6,9");
  root_.Write("proc/self/status", "Mems_allowed_list:\t0-2\n");
  EXPECT_EQ(Read({0, 11}).nodes[0].id, kAnyNode) << "a CPU that no node names";
}

TEST_F(Topology, OneNodeOfSeveralByItsNumber) {
  const CpuTopology all = Read({0, 1, 2, 3});
  const Result<CpuTopology> one = OnlyNode(all, 1, root_.path());
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->nodes.size(), 1u);
  EXPECT_THAT(one->nodes[0].cpus, ElementsAre(1, 3));
  EXPECT_THAT(OnlyNode(all, 7, root_.path()).status().message(),
              HasSubstr("no NUMA node 7 on this machine; it has 0-2"));
  EXPECT_THAT(OnlyNode(all, 2, root_.path()).status().message(), HasSubstr("NUMA node 2 has no CPU or no memory"));
  EXPECT_THAT(OnlyNode(Read({1}), 0, root_.path()).status().message(), HasSubstr("that this process may use"));
  FakeRoot bare;
  EXPECT_TRUE(OnlyNode(FlatTopology({0, 1}), 0, bare.path()).ok());
  EXPECT_FALSE(OnlyNode(FlatTopology({0, 1}), 1, bare.path()).ok());
}

TEST(PlaceThreads, FillsNodesEvenlyAndStartsAgain) {
  const CpuTopology topology{{{0, {0, 1, 2, 3}, -1}, {1, {8, 9}, -1}}};
  std::vector<std::pair<int, int>> places;
  for (const ThreadPlace& place : PlaceThreads(topology, 8)) places.emplace_back(place.node, place.cpu);
  using P = std::pair<int, int>;
  EXPECT_THAT(places, ElementsAre(P(0, 0), P(1, 8), P(0, 1), P(0, 2), P(1, 9), P(0, 3), P(0, 0), P(1, 8)));
  places.clear();
  for (const ThreadPlace& place : PlaceThreads(FlatTopology({3, 5}), 3)) places.emplace_back(place.node, place.cpu);
  EXPECT_THAT(places, ElementsAre(P(0, 3), P(0, 5), P(0, 3)));
}

TEST(CpuList, IsTheKernels) {
  EXPECT_THAT(ParseCpuList("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(ParseCpuList("\n"), ElementsAre());
  EXPECT_THAT(ParseCpuList("5"), ElementsAre(5));
  EXPECT_EQ(FormatCpuList({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(FormatCpuList({}), "");
}

TEST(CpuTopology, OfThisMachineHasTheCpusOfThisProcess) {
  EXPECT_EQ(ReadCpuTopology(AllowedCpus()).num_cpus(), static_cast<int>(AllowedCpus().size()));
}

}  // namespace
}  // namespace fastdecode::rworker
