// SPDX-License-Identifier: BSD-3-Clause
//
// The machine's processors and NUMA nodes, read from trees of files like the kernel's.
//
// Seen to fail: with ranges of a list read as their last number; with the list of nodes read from
// another file; with no end to the places; with processors beyond them dealt to another node's;
// with a list of processors that has none of them taken for a machine of no places.
#include "alloc/os/topology.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <ostream>
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
  // A machine with these processors online and nodes with these. One without has memory only.
  Tree(const std::string& online, const std::vector<std::string>& nodes) : Tree() {
    write("cpu/online", online);
    std::string with_processors;
    for (std::size_t node = 0; node < nodes.size(); node++) {
      write("node/node" + std::to_string(node) + "/cpulist", nodes[node]);
      if (nodes[node].empty()) continue;
      with_processors += (with_processors.empty() ? "" : ",") + std::to_string(node);
    }
    if (!nodes.empty()) write("node/has_cpu", with_processors);
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::path path = root_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  Topology read() const {
    Topology topology;
    EXPECT_TRUE(topology_read(root(), &topology));
    return topology;
  }
  const char* root() const { return root_.c_str(); }

 private:
  std::filesystem::path root_;
};

// Each place of a node has as many of its processors as any other, and none of another's.
void expect_fair(const Topology& topology, const std::vector<unsigned>& node_of) {
  std::vector<unsigned> of_place(topology.places), of_node(topology.nodes), places(topology.nodes);
  for (std::size_t cpu = 0; cpu < node_of.size(); cpu++) {
    unsigned place = topology.place_of_cpu[cpu];
    ASSERT_LT(place, topology.places) << cpu;
    EXPECT_EQ(topology.node_of_place[place], node_of[cpu]) << cpu;
    of_place[place]++;
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

struct Machine {
  const char* name;
  std::string online;
  std::vector<std::string> nodes;
  unsigned places, nodes_with_processors;
  std::function<unsigned(unsigned)> node_of;
};
std::ostream& operator<<(std::ostream& out, const Machine& machine) {
  return out << machine.name;
}
unsigned processors(const Machine& machine) {
  return static_cast<unsigned>(std::stoul(machine.online.substr(machine.online.find('-') + 1))) + 1;
}

class OfMachine : public ::testing::TestWithParam<Machine> {};

TEST_P(OfMachine, each_processor_has_a_place_of_its_node) {
  const Machine& machine = GetParam();
  Topology topology = Tree(machine.online, machine.nodes).read();
  EXPECT_EQ(topology.places, machine.places);
  EXPECT_EQ(topology.nodes, machine.nodes_with_processors);
  std::vector<unsigned> node_of;
  for (unsigned cpu = 0; cpu < processors(machine); cpu++) node_of.push_back(machine.node_of(cpu));
  expect_fair(topology, node_of);
}

constexpr unsigned kMost = rdmalloc::os::kMostPlaces;

INSTANTIATE_TEST_SUITE_P(
    Topology, OfMachine,
    ::testing::Values(Machine{"laptop", "0-7", {"0-7"}, 8, 1, [](unsigned) { return 0u; }},
                      Machine{"without_node_files", "0-7", {}, 8, 1, [](unsigned) { return 0u; }},
                      Machine{"more_processors_than_places",
                              "0-511",
                              {"0-127,256-383", "128-255,384-511"},
                              kMost,
                              2,
                              [](unsigned cpu) { return cpu % 256 / 128; }},
                      Machine{"uneven_nodes",
                              "0-599",
                              {"0-299", "300-449", "450-599"},
                              kMost / 3 * 3,
                              3,
                              [](unsigned cpu) { return cpu < 300   ? 0u
                                                        : cpu < 450 ? 1u
                                                                    : 2u; }},
                      Machine{"a_node_with_memory_only",
                              "0-15",
                              {"0-7", "", "8-15"},
                              16,
                              2,
                              [](unsigned cpu) { return cpu / 8; }},
                      Machine{"nodes_that_alternate",
                              "0-7",
                              {"0,2,4,6", "1,3,5,7"},
                              8,
                              2,
                              [](unsigned cpu) { return cpu % 2; }}),
    [](const auto& machine) { return machine.param.name; });

TEST(Topology, a_processor_that_is_off_has_no_place_of_its_own) {
  Topology topology = Tree("0-5,7", {"0-7"}).read();
  EXPECT_EQ(topology.places, 7u);
  for (unsigned cpu = 0; cpu < 6; cpu++) EXPECT_EQ(topology.place_of_cpu[cpu], cpu);
  EXPECT_EQ(topology.place_of_cpu[6], 0);
  EXPECT_EQ(topology.place_of_cpu[7], 6);
}

// By parts, whose ends cut a number in two or lie beside one. Seen to fail with the first part
// alone, and with a number that begins anew in each.
TEST(Topology, a_list_longer_than_a_part_is_read_to_its_end) {
  for (unsigned first = 0; first < 12; first++) {
    std::string online;
    std::vector<unsigned> cpus;
    for (unsigned cpu = first % 3 == 0 ? 9 : 1000; cpus.size() < 200; cpu += 2 + first / 3) {
      online += (online.empty() ? "" : ",") + std::to_string(cpu);
      cpus.push_back(cpu);
    }
    online.insert(0, first, ',');
    ASSERT_GT(online.size(), 512u);
    Topology topology = Tree(online, {}).read();
    EXPECT_EQ(topology.places, cpus.size()) << online;
    for (unsigned place = 0; place < cpus.size(); place++)
      EXPECT_EQ(topology.place_of_cpu[cpus[place]], place) << online;
  }
}

TEST(Topology, missing_or_nonsensical_files_tell_nothing_and_break_nothing) {
  Tree tree;
  Topology topology;
  EXPECT_FALSE(topology_read(tree.root(), &topology));
  tree.write("cpu/online", "none");
  EXPECT_FALSE(topology_read(tree.root(), &topology));
  // Numbers, but none of a processor that counts.
  for (const char* online : {"3-1", "99999999999", "4096-5000"}) {
    tree.write("cpu/online", online);
    EXPECT_FALSE(topology_read(tree.root(), &topology)) << online;
  }
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
  if (access("/sys/devices/system/cpu/online", R_OK) != 0)
    GTEST_SKIP() << "SKIP: no /sys/devices/system/cpu here";
  const int free_descriptor = dup(1);
  close(free_descriptor);
  ASSERT_TRUE(rdmalloc::os::topology_is_at("/sys/devices/system"));
  ASSERT_TRUE(topology_read("/sys/devices/system", &topology));
  EXPECT_EQ(dup(1), free_descriptor) << "a file stays open";
  EXPECT_GE(topology.places, topology.nodes);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (online <= long{kMost / topology.nodes}) {
    EXPECT_EQ(topology.places, static_cast<unsigned>(online));
  }
}

}  // namespace
