// The processors of the machine and which of them share a NUMA node: what shards are made by
// (core/shard.h). Read from the kernel's files by raw system calls, without an allocation, and not
// before a thread has use for it: until then, and where there is nothing to be read, all
// processors are one place.
//
// RDMALLOC_TOPOLOGY=2x4 makes a topology up, for tests: two nodes of four processors each, to which
// the threads are dealt in turn, whatever processor they run on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::os {

// A place is a processor. Machines that have more of them than that are told by fewer: each node
// has an equal part of the places, and deals its processors to them in turn.
inline constexpr unsigned kMostPlaces = 256;
inline constexpr unsigned kMostCpus = 4096;

struct Topology {
  std::uint32_t places = 0;
  std::uint32_t nodes = 0;  // that have processors, numbered from 0 by us
  std::uint8_t node_of_place[kMostPlaces] = {};
  std::uint8_t place_of_cpu[kMostCpus] = {};
};

// Where it is taken from: RDMALLOC_TOPOLOGY.
enum class TopologyMode : std::uint8_t { kAuto, kOne, kDirectory, kMadeUp };
struct TopologySource {
  static constexpr std::size_t kLongestPath = 200;
  TopologyMode mode = TopologyMode::kAuto;
  std::uint32_t nodes = 0, processors = 0;  // kMadeUp: processors of each node
  char directory[kLongestPath + 1] = {};    // kDirectory: in place of /sys/devices/system
};

// Reads it from the files below `root`. At most 6 system calls and 3 a node: 9 on a machine with
// one. False when they tell nothing; then *topology is of no use.
bool topology_read(const char* root, Topology* topology);
// `nodes` nodes of `processors` places each, together at most kMostPlaces.
void topology_make(std::uint32_t nodes, std::uint32_t processors, Topology* topology);
// Whether there are such files below `root`.
bool topology_is_at(const char* root);

// The process's own. To be called when a second thread appears; the first call reads the files.
void topology_learn(const TopologySource& source);
// Whether that has been done: a second caller does not wait for the first.
bool topology_is_known();
// Notes on which processor the first thread runs, long before that.
void topology_note_first_thread();
// In the child of a fork: a thread that was reading the files is no more.
void topology_after_fork();

namespace detail {
extern constinit std::atomic<std::uint32_t> places, nodes;
}
// Places and nodes known of: 1 before topology_learn(). Acquire: pairs with the release there; what
// they count is there.
inline unsigned place_count() {
  return detail::places.load(std::memory_order_acquire);
}
inline unsigned node_count() {
  return detail::nodes.load(std::memory_order_acquire);
}
unsigned node_of_place(unsigned place);
// Where the first thread was when it was noted.
unsigned first_place();
// Where the calling thread runs; no system call on x86-64. It may run elsewhere the moment after.
unsigned this_place();
inline unsigned this_node() {
  return node_count() == 1 ? 0 : node_of_place(this_place());
}
// In a made-up topology: puts the calling thread there. False in a real one.
bool move_to_place(unsigned place);

}  // namespace rdmalloc::os
