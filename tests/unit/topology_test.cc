// SPDX-License-Identifier: BSD-3-Clause
//
// The machine's processors and NUMA nodes, read from trees of files like the kernel's.
//
// Seen to fail: with ranges of a list read as their last number; with the list of nodes read from
// another file; with no end to the places; with processors beyond them dealt to another node's.
#include "alloc/os/topology.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using rdmalloc::os::Topology;
using rdmalloc::os::topology_read;

class Tree {
 public:
  Tree() {
    std::string pattern = ::testing::TempDir() + "topology-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::path path = root_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  const char* root() const { return root_.c_str(); }

 private:
  std::filesystem::path root_;
};

TEST(Topology, each_processor_is_a_place) {
  Tree tree;
  tree.write("cpu/online", "0-5,7");
  tree.write("node/has_cpu", "0");
  tree.write("node/node0/cpulist", "0-7");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 7u);
  EXPECT_EQ(topology.nodes, 1u);
  for (unsigned cpu = 0; cpu < 6; cpu++) EXPECT_EQ(topology.place_of_cpu[cpu], cpu);
  EXPECT_EQ(topology.place_of_cpu[7], 6);
}

// Each place of a node has as many of its processors as any other, and none of another's.
void expect_fair(const Topology& topology, unsigned cpus, const std::vector<unsigned>& node_of) {
  std::vector<unsigned> of_place(topology.places), of_node(topology.nodes), places(topology.nodes);
  for (unsigned cpu = 0; cpu < cpus; cpu++) {
    ASSERT_LT(topology.place_of_cpu[cpu], topology.places) << cpu;
    EXPECT_EQ(topology.node_of_place[topology.place_of_cpu[cpu]], node_of[cpu]) << cpu;
    of_place[topology.place_of_cpu[cpu]]++;
    of_node[node_of[cpu]]++;
  }
  for (unsigned place = 0; place < topology.places; place++)
    places[topology.node_of_place[place]]++;
  for (unsigned place = 0; place < topology.places; place++) {
    unsigned node = topology.node_of_place[place];
    EXPECT_GE(of_place[place], of_node[node] / places[node]) << place;
    EXPECT_LE(of_place[place], (of_node[node] - 1) / places[node] + 1) << place;
  }
}

TEST(Topology, processors_beyond_the_places_are_dealt_to_those_of_their_node) {
  Tree tree;
  tree.write("cpu/online", "0-511");
  tree.write("node/has_cpu", "0-1");
  tree.write("node/node0/cpulist", "0-127,256-383");
  tree.write("node/node1/cpulist", "128-255,384-511");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, rdmalloc::os::kMostPlaces);
  EXPECT_EQ(topology.nodes, 2u);
  std::vector<unsigned> node_of;
  for (unsigned cpu = 0; cpu < 512; cpu++) node_of.push_back(cpu % 256 / 128);
  expect_fair(topology, 512, node_of);
}

TEST(Topology, nodes_of_which_the_places_are_no_multiple_have_as_many_each) {
  Tree tree;
  tree.write("cpu/online", "0-599");
  tree.write("node/has_cpu", "0-2");
  tree.write("node/node0/cpulist", "0-299");
  tree.write("node/node1/cpulist", "300-449");
  tree.write("node/node2/cpulist", "450-599");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, rdmalloc::os::kMostPlaces / 3 * 3);
  std::vector<unsigned> node_of;
  for (unsigned cpu = 0; cpu < 600; cpu++) node_of.push_back(cpu < 300 ? 0 : cpu < 450 ? 1 : 2);
  expect_fair(topology, 600, node_of);
}

TEST(Topology, nodes_with_memory_only_are_none) {
  Tree tree;
  tree.write("cpu/online", "0-15");
  tree.write("node/has_cpu", "0,2");
  tree.write("node/node0/cpulist", "0-7");
  tree.write("node/node1/cpulist", "");
  tree.write("node/node2/cpulist", "8-15");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 16u);
  EXPECT_EQ(topology.nodes, 2u);
  for (unsigned cpu = 0; cpu < 16; cpu++)
    EXPECT_EQ(topology.node_of_place[topology.place_of_cpu[cpu]], cpu / 8) << cpu;
}

TEST(Topology, processors_of_two_nodes_may_alternate) {
  Tree tree;
  tree.write("cpu/online", "0-7");
  tree.write("node/has_cpu", "0-1");
  tree.write("node/node0/cpulist", "0,2,4,6");
  tree.write("node/node1/cpulist", "1,3,5,7");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 8u);
  for (unsigned cpu = 0; cpu < 8; cpu++)
    EXPECT_EQ(topology.node_of_place[topology.place_of_cpu[cpu]], cpu % 2) << cpu;
}

TEST(Topology, without_node_files_there_is_one) {
  Tree tree;
  tree.write("cpu/online", "0-7");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 8u);
  EXPECT_EQ(topology.nodes, 1u);
}

TEST(Topology, without_files_or_with_nonsense_in_them_nothing_is_known_and_nothing_breaks) {
  Tree tree;
  Topology topology;
  EXPECT_FALSE(topology_read(tree.root(), &topology));
  tree.write("cpu/online", "none");
  EXPECT_FALSE(topology_read(tree.root(), &topology));
  tree.write("cpu/online", "3-1,99999999999,0-2");
  tree.write("node/has_cpu", "4294967295,0-9999999");
  tree.write("node/node0/cpulist", "5-,-7,0-100000");
  EXPECT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_GE(topology.places, 1u);
  EXPECT_LE(topology.places, rdmalloc::os::kMostPlaces);
  for (unsigned cpu = 0; cpu < rdmalloc::os::kMostCpus; cpu++)
    EXPECT_LT(topology.place_of_cpu[cpu], topology.places) << cpu;
}

TEST(Topology, a_path_too_long_is_no_directory) {
  EXPECT_FALSE(rdmalloc::os::topology_is_at(std::string(5000, 'a').c_str()));
}

TEST(Topology, this_machines_files_are_understood) {
  Topology topology;
  if (!rdmalloc::os::topology_is_at("/sys/devices/system"))
    GTEST_SKIP() << "SKIP: no /sys/devices/system/cpu here";
  ASSERT_TRUE(topology_read("/sys/devices/system", &topology));
  EXPECT_GE(topology.places, topology.nodes);
}

}  // namespace
