// libcoherence.so, a plugin of QEMU's user mode: runs a program as if each of its threads had a
// core and a cache of its own, and counts the cache lines that move from one core to another
// (docs/bench.md, bench_cores).
//
//   qemu-x86_64 -plugin libcoherence.so[,turn=N][,cores=N][,cpus=N][,top=N] PROGRAM
//
//   turn   memory accesses of a thread until it is the next one's turn (24)
//   cores  threads at most, at one time (320)
//   cpus   processors that sched_getaffinity() and getcpu() tell of; thread n is on the n-th (64)
//   top    how many instructions to name, those that moved most lines (0)
//
// A thread is counted between its marks (bench/support/marks.h). At the program's end one JSON
// object goes to standard output.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/cores/caches.h"
#include "bench/cores/places.h"
#include "bench/cores/qemu_plugin.h"
#include "bench/cores/schedule.h"
#include "bench/support/marks.h"

int qemu_plugin_version = 1;

namespace rdmalloc::bench {
namespace {

struct Options {
  unsigned turn = 24;
  unsigned cores = 320;
  unsigned cpus = 64;
  unsigned top = 0;
};

struct Counts {
  std::uint64_t by_load = 0;  // lines moved
  std::uint64_t by_store = 0;
  std::uint64_t accesses = 0;
  std::uint64_t operations = 0;
  std::uint64_t spans = 0;  // from a mark to the next
};

// Of a core; only the thread on it uses it, until the program ends.
struct Core {
  bool is_counted = false;
  Counts counts;
  std::uint64_t arguments[3] = {};   // of the system call that it is in
  bool sets_threads_going = false;   // the call does
  std::uint64_t entries_before = 0;  // of threads, at the call
};

struct Machine {
  explicit Machine(const Options& asked)
      : options(asked),
        places(asked.cores),
        schedule(asked.cores, asked.turn),
        cores(asked.cores),
        caches(asked.cores) {}

  const Options options;
  Places places;
  Schedule schedule;
  std::vector<Core> cores;
  // Inside Schedule::access():
  Caches caches;
  std::unordered_map<std::uint64_t, std::uint64_t> moved_by;  // lines, by instruction
};
Machine* machine = nullptr;  // made once and never ended: threads may outlive any order of ends

// ---- what the program does with memory

void touch(Core& state, unsigned core, std::uint64_t line, bool is_store,
           std::uint64_t instruction) {
  using Moved = Caches::Moved;
  const Moved moved =
      is_store ? machine->caches.store(core, line) : machine->caches.load(core, line);
  if (moved == Moved::nothing || !state.is_counted) return;
  ++(moved == Moved::by_load ? state.counts.by_load : state.counts.by_store);
  if (machine->options.top != 0) ++machine->moved_by[instruction];
}

void on_access(unsigned thread, qemu_plugin_meminfo_t info, std::uint64_t address, void* data) {
  const bool is_store = qemu_plugin_mem_is_store(info);
  const std::uint64_t last = address + (std::uint64_t{1} << qemu_plugin_mem_size_shift(info)) - 1;
  const std::uint64_t line = address >> Caches::kLineShift;
  const std::uint64_t last_line = last >> Caches::kLineShift;
  const auto instruction = reinterpret_cast<std::uintptr_t>(data);
  const unsigned core = machine->places.core_of(thread);
  machine->schedule.access(core, [=] {
    Core& state = machine->cores[core];
    if (state.is_counted) ++state.counts.accesses;
    touch(state, core, line, is_store, instruction);
    if (last_line != line) touch(state, core, last_line, is_store, instruction);
  });
}

void on_translation(qemu_plugin_id_t, qemu_plugin_tb* block) {
  for (std::size_t i = 0; i < qemu_plugin_tb_n_insns(block); ++i) {
    qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
    const auto address = static_cast<std::uintptr_t>(qemu_plugin_insn_vaddr(instruction));
    qemu_plugin_register_vcpu_mem_cb(instruction, on_access, QEMU_PLUGIN_CB_NO_REGS,
                                     QEMU_PLUGIN_MEM_RW, reinterpret_cast<void*>(address));
  }
}

// ---- what it asks of the kernel

void on_mark(Core& core, std::uint64_t what, std::uint64_t operations) {
  core.is_counted = what == static_cast<std::uint64_t>(Mark::begin);
  if (core.is_counted) return;
  ++core.counts.spans;
  core.counts.operations += operations;
}

// Whether the call starts a thread or wakes some: how many, its result says.
bool sets_threads_going(std::int64_t number, std::uint64_t first, std::uint64_t second) {
  if (number == SYS_clone) return (first & CLONE_THREAD) != 0;
  const std::uint64_t command = second & FUTEX_CMD_MASK;
  return number == SYS_futex && (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET);
}

void on_call(qemu_plugin_id_t, unsigned thread, std::int64_t number, std::uint64_t first,
             std::uint64_t second, std::uint64_t third, std::uint64_t, std::uint64_t, std::uint64_t,
             std::uint64_t, std::uint64_t) {
  const unsigned number_of_core = machine->places.core_of(thread);
  Core& core = machine->cores[number_of_core];
  if (number == SYS_prctl && first == kMarkOption) on_mark(core, second, third);
  core.arguments[0] = first;
  core.arguments[1] = second;
  core.arguments[2] = third;
  core.sets_threads_going = sets_threads_going(number, first, second);
  core.entries_before = machine->schedule.entries();
  machine->schedule.leave(number_of_core);
  if (number == SYS_exit) machine->places.leave(thread);
}

// The program's addresses are QEMU's own where both are of the same architecture.
template <typename T>
T* in_program(std::uint64_t address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

// A processor for each thread, as far as the kernel's answer has room: it is as long as the host's.
void show_processors(const Core& core, std::int64_t number, std::int64_t result) {
  const unsigned cpus = machine->options.cpus;
  if (number == SYS_sched_getaffinity && result > 0) {
    auto* bytes = in_program<std::uint8_t>(core.arguments[2]);
    for (unsigned cpu = 0; cpu < 8 * static_cast<std::uint64_t>(result); ++cpu) {
      const auto bit = static_cast<std::uint8_t>(1u << cpu % 8);
      bytes[cpu / 8] =
          static_cast<std::uint8_t>(cpu < cpus ? bytes[cpu / 8] | bit : bytes[cpu / 8] & ~bit);
    }
  }
  if (number != SYS_getcpu || result != 0) return;
  const auto index = static_cast<unsigned>(&core - machine->cores.data());
  if (core.arguments[0] != 0) *in_program<unsigned>(core.arguments[0]) = index % cpus;
  if (core.arguments[1] != 0) *in_program<unsigned>(core.arguments[1]) = 0;
}

// A thread that set others going waits for them, so that all go on from the same moment, whenever
// the host lets them run. No longer than this: a thread may be woken and end, or be another
// process's.
constexpr int kEntryLimitMs = 200;

void on_return(qemu_plugin_id_t, unsigned thread, std::int64_t number, std::int64_t result) {
  const unsigned number_of_core = machine->places.core_of(thread);
  Core& core = machine->cores[number_of_core];
  if (core.sets_threads_going && result > 0) {
    const std::uint64_t going = number == SYS_clone ? 1 : static_cast<std::uint64_t>(result);
    machine->schedule.wait_for_entries(core.entries_before + going, kEntryLimitMs);
  }
  show_processors(core, number, result);
  machine->schedule.enter(number_of_core);
}

// ---- the report

std::string hex(std::uint64_t number) {
  std::array<char, 20> text;
  std::snprintf(text.data(), text.size(), "0x%" PRIx64, number);
  return text.data();
}

// "OBJECT+0xADDRESS", as the object's own symbols are numbered: from where its beginning is mapped.
// An offset within the file would be another number where its segments don't follow each other
// alike.
std::string place_of(std::uint64_t instruction) {
  std::ifstream maps("/proc/self/maps");
  std::string object;
  unsigned long begin = 0;  // of the object that the last line was of
  for (std::string line; std::getline(maps, line);) {
    unsigned long low = 0;
    unsigned long high = 0;
    unsigned long offset = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %*s %n", &low, &high, &offset, &path) < 3 ||
        static_cast<std::size_t>(path) >= line.size())
      continue;
    const std::string name = line.substr(static_cast<std::size_t>(path));
    if (name != object) begin = low - offset;
    object = name;
    if (instruction >= low && instruction < high) return name + "+" + hex(instruction - begin);
  }
  return hex(instruction);
}

void print_top() {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> instructions;  // lines moved, address
  for (const auto& [address, lines] : machine->moved_by) instructions.emplace_back(lines, address);
  std::sort(instructions.rbegin(), instructions.rend());
  if (instructions.size() > machine->options.top) instructions.resize(machine->options.top);
  std::printf(",\"top\":[");
  const char* before = "";
  for (const auto& [lines, address] : instructions) {
    std::printf("%s{\"lines\":%" PRIu64 ",\"at\":\"%s\"}", before, lines,
                place_of(address).c_str());
    before = ",";
  }
  std::printf("]");
}

void on_end(qemu_plugin_id_t, void*) {
  Counts all;
  for (const Core& core : machine->cores) {
    all.by_load += core.counts.by_load;
    all.by_store += core.counts.by_store;
    all.accesses += core.counts.accesses;
    all.operations += core.counts.operations;
    all.spans += core.counts.spans;
  }
  const Schedule::Counts schedule = machine->schedule.counts();
  std::printf("{\"lines_moved\":%" PRIu64 ",\"by_load\":%" PRIu64 ",\"by_store\":%" PRIu64
              ",\"accesses\":%" PRIu64 ",\"operations_counted\":%" PRIu64 ",\"spans\":%" PRIu64
              ",\"turns\":%" PRIu64 ",\"drains\":%" PRIu64 ",\"unordered\":%" PRIu64
              ",\"lost_lines\":%" PRIu64,
              all.by_load + all.by_store, all.by_load, all.by_store, all.accesses, all.operations,
              all.spans, schedule.turns, schedule.drains, schedule.unordered,
              machine->caches.lost_lines());
  if (machine->options.top != 0) print_top();
  std::printf("}\n");
  std::fflush(stdout);
}

// What is wrong with an argument, or nothing.
std::string take_option(const std::string& text, Options& options) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  struct Known {
    const char* name;
    unsigned& value;
    unsigned least;
    unsigned most;
  };
  for (const Known& known :
       {Known{"turn", options.turn, 1, 1'000'000}, Known{"cores", options.cores, 1, 4096},
        Known{"cpus", options.cpus, 1, 4096}, Known{"top", options.top, 0, 1000}}) {
    if (name != known.name) continue;
    char* end = nullptr;
    const unsigned long number = std::strtoul(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || number < known.least || number > known.most)
      return name + " is '" + value + "'; allowed: " + std::to_string(known.least) + " to " +
             std::to_string(known.most);
    known.value = static_cast<unsigned>(number);
    return {};
  }
  return "no option '" + name + "'; there are turn, cores, cpus and top";
}

}  // namespace
}  // namespace rdmalloc::bench

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t*, int argc, char** argv) {
  using namespace rdmalloc::bench;
  Options options;
  for (int i = 0; i < argc; ++i)
    if (const std::string problem = take_option(argv[i], options); !problem.empty()) {
      std::fprintf(stderr, "coherence: %s\n", problem.c_str());
      return -1;
    }
  machine = new Machine(options);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_vcpu_syscall_cb(id, on_call);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, on_return);
  qemu_plugin_register_atexit_cb(id, on_end, nullptr);
  return 0;
}
