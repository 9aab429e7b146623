#include "alloc/os/topology.h"

#include <errno.h>
#include <sched.h>

#include <atomic>

#include "alloc/os/file.h"
#include "alloc/os/path.h"

namespace rdmalloc::os {

namespace detail {
constinit std::atomic<std::uint32_t> places{1}, nodes{1};
}

namespace {

constexpr char kRoot[] = "/sys/devices/system";
constexpr unsigned kMostNodes = 64;
static_assert(kMostNodes <= kMostPlaces);
constexpr std::uint16_t kNone = 0xffff;
static_assert(kMostPlaces < kNone);

// Calls `see(number)` for each number of a list like "0-3,8,10-11". Read by parts, so that a list
// of any length takes no large buffer. False when there is no such file, or no number in it.
template <typename See>
bool read_list(const Path& path, See see) {
  int fd = open_to_read(path.c_str());
  if (fd < 0) return false;
  unsigned first = 0, number = 0;
  bool has_digits = false, is_range = false, is_any = false;
  auto end_number = [&] {
    if (!has_digits) return;
    // A list that makes no sense is read as far as it does.
    for (unsigned n = is_range ? first : number; n <= number && n < kMostCpus; ++n) see(n);
    is_any = true;
  };
  char part[256];
  while (std::size_t got = read_some(fd, part, sizeof part)) {
    for (std::size_t i = 0; i < got; ++i) {
      if (part[i] >= '0' && part[i] <= '9') {
        if (number < kMostCpus) number = number * 10 + static_cast<unsigned>(part[i] - '0');
        has_digits = true;
        continue;
      }
      if (part[i] == '-') {
        first = number;
        is_range = has_digits;
      } else {
        end_number();
        is_range = false;
      }
      number = 0;
      has_digits = false;
    }
    if (got < sizeof part) break;  // such files are read whole by one call, if they fit
  }
  end_number();
  close_file(fd);
  return is_any;
}

class Reader {
 public:
  Reader(const char* root, Topology* topology) : root_(root), topology_(*topology) {}

  bool read() {
    // A processor that is not online now and will be: anywhere.
    for (std::uint8_t& place : topology_.place_of_cpu) place = 0;
    topology_.nodes = topology_.places = 0;
    read_nodes();
    if (topology_.nodes == 0) topology_.nodes = 1;
    read_list(Path(root_).text("/cpu/online"), [&](unsigned cpu) { enter(cpu); });
    return topology_.places != 0;
  }

 private:
  // Nodes with memory only, which no thread runs on, are no place.
  void read_nodes() {
    read_list(Path(root_).text("/node/has_cpu"), [&](unsigned node) {
      if (topology_.nodes == kMostNodes) return;
      auto number = static_cast<std::uint8_t>(topology_.nodes++);
      read_list(Path(root_).text("/node/node").number(node).text("/cpulist"),
                [&](unsigned cpu) { node_of_cpu_[cpu] = number; });
    });
  }

  void enter(unsigned cpu) {
    std::uint8_t node = node_of_cpu_[cpu];
    unsigned most = kMostPlaces / topology_.nodes, nth = cpus_of_node_[node]++;
    unsigned place = nth < most ? topology_.places++ : place_of(node, nth % most);
    topology_.node_of_place[place] = node;
    topology_.place_of_cpu[cpu] = static_cast<std::uint8_t>(place);
  }

  // The nth of the node's places, from 0.
  unsigned place_of(std::uint8_t node, unsigned nth) const {
    unsigned place = 0;
    for (;; ++place)
      if (topology_.node_of_place[place] == node && nth-- == 0) return place;
  }

  const char* root_;
  Topology& topology_;
  std::uint8_t node_of_cpu_[kMostCpus] = {};
  unsigned cpus_of_node_[kMostNodes] = {};
};

// ---- the process's own ----

enum class State : std::uint32_t { kUnknown, kReading, kKnown };

// Written by the one thread that reads, before `places` and `nodes` say more than 1.
constinit Topology known;
constinit std::atomic<State> state{State::kUnknown};
constinit bool is_made_up = false;  // likewise
constinit std::atomic<int> first_cpu{0};
constinit std::atomic<std::uint32_t> threads_dealt{0};
constinit thread_local std::uint16_t dealt_place = kNone;

int this_cpu() {
  int saved = errno;
  int cpu = sched_getcpu();
  errno = saved;
  return cpu;
}

unsigned place_of(int cpu) {
  return cpu >= 0 && static_cast<unsigned>(cpu) < kMostCpus ? known.place_of_cpu[cpu] : 0;
}

bool learn(const TopologySource& source) {
  switch (source.mode) {
    case TopologyMode::kOne:
      return false;
    case TopologyMode::kMadeUp:
      topology_make(source.nodes, source.processors, &known);
      is_made_up = true;
      return true;
    case TopologyMode::kDirectory:
      return topology_read(source.directory, &known);
    case TopologyMode::kAuto:
      break;
  }
  return topology_read(kRoot, &known);
}

}  // namespace

bool topology_read(const char* root, Topology* topology) {
  return Reader(root, topology).read();
}

void topology_make(std::uint32_t nodes, std::uint32_t processors, Topology* topology) {
  topology->nodes = nodes;
  topology->places = nodes * processors;
  for (std::uint32_t place = 0; place < topology->places; ++place)
    topology->node_of_place[place] = static_cast<std::uint8_t>(place / processors);
}

bool topology_is_at(const char* root) {
  return read_list(Path(root).text("/cpu/online"), [](unsigned) {});
}

void topology_learn(const TopologySource& source) {
  State expected = State::kUnknown;
  // A thread that comes meanwhile does not wait: for it all is one place yet. Relaxed: what the
  // files said is published by `places` and `nodes`.
  if (state.load(std::memory_order_relaxed) != State::kUnknown ||
      !state.compare_exchange_strong(expected, State::kReading, std::memory_order_relaxed))
    return;
  if (learn(source)) {
    // Release: pairs with the acquire in place_count() and node_count(): `known` is there.
    detail::nodes.store(known.nodes, std::memory_order_release);
    detail::places.store(known.places, std::memory_order_release);
  }
  // Release: pairs with the acquire in topology_is_known(): all of the above.
  state.store(State::kKnown, std::memory_order_release);
}

bool topology_is_known() {
  return state.load(std::memory_order_acquire) == State::kKnown;
}

void topology_note_first_thread() {
  first_cpu.store(this_cpu(), std::memory_order_relaxed);
}

void topology_after_fork() {
  if (state.load(std::memory_order_relaxed) == State::kReading)
    state.store(State::kUnknown, std::memory_order_relaxed);
}

unsigned node_of_place(unsigned place) {
  return place_count() == 1 ? 0 : known.node_of_place[place];
}

unsigned first_place() {
  return place_count() == 1 || is_made_up ? 0 : place_of(first_cpu.load(std::memory_order_relaxed));
}

unsigned this_place() {
  if (place_count() == 1) return 0;
  if (!is_made_up) return place_of(this_cpu());
  if (dealt_place == kNone)
    dealt_place = static_cast<std::uint16_t>(threads_dealt.fetch_add(1, std::memory_order_relaxed) %
                                             place_count());
  return dealt_place;
}

bool move_to_place(unsigned place) {
  if (place >= place_count() || !is_made_up) return false;
  dealt_place = static_cast<std::uint16_t>(place);
  return true;
}

}  // namespace rdmalloc::os
