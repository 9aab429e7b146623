// SPDX-License-Identifier: BSD-3-Clause
//
// The machine's last-level caches and NUMA nodes, read from trees of files like the kernel's.
//
// Seen to fail: with ranges of a list read as their last number; with a cache of one processor
// taken for a place; with the processors of other nodes that share a cache put at one place; with
// the list of nodes read from another file; with no end to the places.
#include "alloc/os/topology.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

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
  // Each processor of [first, last] has an L1 of its own at index 0, and at `index` what `list`
  // says.
  void cache(unsigned first, unsigned last, unsigned index, const std::string& list) const {
    for (unsigned cpu = first; cpu <= last; cpu++) {
      std::string caches = "cpu/cpu" + std::to_string(cpu) + "/cache/index";
      write(caches + "0/shared_cpu_list", std::to_string(cpu));
      write(caches + std::to_string(index) + "/shared_cpu_list", list);
    }
  }
  const char* root() const { return root_.c_str(); }

 private:
  std::filesystem::path root_;
};

TEST(Topology, one_cache_and_one_node_are_one_place) {
  Tree tree;
  tree.write("cpu/online", "0-7");
  tree.write("node/has_cpu", "0");
  tree.write("node/node0/cpulist", "0-7");
  tree.cache(0, 7, 3, "0-7");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 1u);
  EXPECT_EQ(topology.nodes, 1u);
}

TEST(Topology, each_last_level_cache_of_a_large_machine_is_a_place_of_its_node) {
  Tree tree;
  tree.write("cpu/online", "0-511");
  tree.write("node/has_cpu", "0-1");
  tree.write("node/node0/cpulist", "0-127,256-383");
  tree.write("node/node1/cpulist", "128-255,384-511");
  for (unsigned first = 0; first < 256; first += 8) {
    std::string list = std::to_string(first) + "-" + std::to_string(first + 7) + "," +
                       std::to_string(first + 256) + "-" + std::to_string(first + 263);
    tree.cache(first, first + 7, 3, list);
    tree.cache(first + 256, first + 263, 3, list);
  }
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 32u);
  EXPECT_EQ(topology.nodes, 2u);
  for (unsigned cpu = 0; cpu < 512; cpu++) {
    EXPECT_EQ(topology.place_of_cpu[cpu], cpu % 256 / 8) << cpu;
    EXPECT_EQ(topology.node_of_place[topology.place_of_cpu[cpu]], cpu % 256 / 128) << cpu;
  }
}

TEST(Topology, where_caches_are_each_processors_own_the_node_is_the_place) {
  Tree tree;
  tree.write("cpu/online", "0-15");
  tree.write("node/has_cpu", "0,2");  // node 1 has memory only
  tree.write("node/node0/cpulist", "0-7");
  tree.write("node/node1/cpulist", "");
  tree.write("node/node2/cpulist", "8-15");
  for (unsigned cpu = 0; cpu < 16; cpu++) tree.cache(cpu, cpu, 2, std::to_string(cpu));
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 2u);
  EXPECT_EQ(topology.nodes, 2u);
  EXPECT_EQ(topology.place_of_cpu[7], 0);
  EXPECT_EQ(topology.place_of_cpu[8], 1);
  EXPECT_EQ(topology.node_of_place[1], 1);
}

TEST(Topology, a_cache_that_two_nodes_share_is_a_place_in_each) {
  Tree tree;
  tree.write("cpu/online", "0-7");
  tree.write("node/has_cpu", "0-1");
  tree.write("node/node0/cpulist", "0,2,4,6");
  tree.write("node/node1/cpulist", "1,3,5,7");
  tree.cache(0, 7, 3, "0-7");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 2u);
  for (unsigned cpu = 0; cpu < 8; cpu++)
    EXPECT_EQ(topology.node_of_place[topology.place_of_cpu[cpu]], cpu % 2) << cpu;
}

TEST(Topology, more_caches_than_places_fall_together_within_their_node) {
  Tree tree;
  tree.write("cpu/online", "0-319");
  tree.write("node/has_cpu", "0");
  tree.write("node/node0/cpulist", "0-319");
  for (unsigned first = 0; first < 320; first += 4)
    tree.cache(first, first + 3, 3, std::to_string(first) + "-" + std::to_string(first + 3));
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, rdmalloc::os::kMostPlaces);
  for (unsigned cpu = 0; cpu < 320; cpu++)
    EXPECT_LT(topology.place_of_cpu[cpu], rdmalloc::os::kMostPlaces) << cpu;
}

TEST(Topology, without_node_files_caches_alone_are_places) {
  Tree tree;
  tree.write("cpu/online", "0-7");
  tree.cache(0, 3, 3, "0-3");
  tree.cache(4, 7, 3, "4-7");
  Topology topology;
  ASSERT_TRUE(topology_read(tree.root(), &topology));
  EXPECT_EQ(topology.places, 2u);
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
  tree.cache(0, 2, 3, "0-99999999");
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
