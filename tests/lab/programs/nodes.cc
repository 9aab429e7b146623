// SPDX-License-Identifier: BSD-3-Clause
//
// On which NUMA node the memory lies that a thread gets from malloc: the thread of each processor,
// bound to it, writes its blocks, and the kernel is asked for the node of each of their pages.
//
//   nodes PATTERN SMALLEST LARGEST MIB ROUNDS
//
// Block sizes lie between the two, each doubling as likely as another; each thread holds so many
// MiB of them. Patterns; a round ends when all threads have their blocks, which are looked at then:
//   own        each thread frees its own blocks and allocates them anew
//   crossed    each thread frees the blocks of a thread of another node before that
//   mixed      each thread replaces random ones of its blocks, as many as it has; every second one
//              is freed by a thread of another node
//   ended      all threads end, those of the last node once they have freed their blocks; after
//              ROUNDS seconds new ones at the other nodes allocate as much more
//   left       the same, but the blocks are freed by threads of the first node
//
// Prints a JSON object a round: bytes of blocks, bytes on pages of another node than their
// thread's, resident MiB of the process by node, and rdmalloc's count of shards (0 under others).
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kMostNodes = 8;

struct Block {
  char* begin = nullptr;
  size_t bytes = 0;
};

struct Worker {
  pthread_t thread = {};
  int processor = 0, node = 0, number = 0;
  Worker* next_node = nullptr;  // the worker with the same place in the next node
  std::vector<Block> blocks;
  std::vector<Block> given;  // by a worker of another node, to be freed
  std::mt19937 random;
};

struct Run {
  std::string pattern;
  size_t smallest = 0, largest = 0, bytes = 0;
  int rounds = 0, nodes = 0;
  std::vector<Worker> workers;
  pthread_barrier_t barrier = {};
} run;

[[noreturn]] void fail(const char* what) {
  perror(what);
  exit(3);
}

void meet() {
  pthread_barrier_wait(&run.barrier);
}

// ---- what the kernel says

// "0-1,4" in /sys/devices/system/node/nodeN/cpulist.
std::vector<int> processors_of(int node) {
  std::string path = "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist";
  std::vector<int> found;
  FILE* file = fopen(path.c_str(), "r");
  if (file == nullptr) return found;
  int first = 0, last = 0;
  while (fscanf(file, "%d", &first) == 1) {
    last = first;
    int after = fgetc(file);
    if (after == '-') {
      if (fscanf(file, "%d", &last) != 1) fail(path.c_str());
      after = fgetc(file);
    }
    for (int processor = first; processor <= last; processor++) found.push_back(processor);
    if (after != ',') break;
  }
  fclose(file);
  return found;
}

struct Places {
  size_t bytes = 0, foreign = 0;
};

// The pages of a worker's blocks, and which of their bytes lie on other nodes' pages.
Places places_of(const Worker& worker) {
  Places found;
  std::vector<void*> pages;
  std::vector<size_t> bytes;
  for (const Block& block : worker.blocks) {
    auto at = reinterpret_cast<uintptr_t>(block.begin), end = at + block.bytes;
    while (at < end) {
      uintptr_t next = std::min(end, at / kPageBytes * kPageBytes + kPageBytes);
      pages.push_back(reinterpret_cast<void*>(at / kPageBytes * kPageBytes));
      bytes.push_back(next - at);
      at = next;
    }
  }
  std::vector<int> nodes(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) < 0)
    fail("move_pages");
  for (size_t i = 0; i < pages.size(); i++) {
    found.bytes += bytes[i];
    if (nodes[i] < 0) {
      fprintf(stderr, "nodes: page %p: %s\n", pages[i], strerror(-nodes[i]));
      exit(3);
    }
    if (nodes[i] != worker.node) found.foreign += bytes[i];
  }
  return found;
}

// Of memory that is the process's own; what files it maps are in the page cache anyway.
void resident_of(double (&mib)[kMostNodes]) {
  for (double& node : mib) node = 0;
  FILE* file = fopen("/proc/self/numa_maps", "r");
  if (file == nullptr) fail("/proc/self/numa_maps");
  char* line = nullptr;
  size_t room = 0;
  while (getline(&line, &room, file) > 0) {
    if (strstr(line, " file=") != nullptr) continue;
    for (char* word = strtok(line, " \n"); word != nullptr; word = strtok(nullptr, " \n")) {
      int node = 0;
      unsigned long pages = 0;
      if (sscanf(word, "N%d=%lu", &node, &pages) == 2 && node < kMostNodes)
        mib[node] += static_cast<double>(pages) * kPageBytes / (1024 * 1024);
    }
  }
  free(line);
  fclose(file);
}

unsigned long shards() {
  auto* ctl = reinterpret_cast<int (*)(const char*, void*, size_t*, const void*, size_t)>(
      dlsym(RTLD_DEFAULT, "rdmalloc_ctl"));
  if (ctl == nullptr) return 0;
  uint64_t count = 0;
  size_t bytes = sizeof count;
  return ctl("stats.shards", &count, &bytes, nullptr, 0) == 0 ? count : 0;
}

void tell(const char* moment, int round) {
  Places all;
  for (const Worker& worker : run.workers) {
    Places found = places_of(worker);
    all.bytes += found.bytes;
    all.foreign += found.foreign;
  }
  double mib[kMostNodes];
  resident_of(mib);
  printf(
      "{\"moment\": \"%s\", \"round\": %d, \"bytes\": %zu, \"foreign\": %zu, \"resident_mib\": [",
      moment, round, all.bytes, all.foreign);
  for (int node = 0; node < run.nodes; node++) printf("%s%.1f", node > 0 ? ", " : "", mib[node]);
  printf("], \"shards\": %lu}\n", shards());
  fflush(stdout);
}

// ---- what the threads do

Block make(Worker& worker) {
  std::uniform_real_distribution<double> powers(std::log2(static_cast<double>(run.smallest)),
                                                std::log2(static_cast<double>(run.largest)));
  Block block;
  block.bytes = static_cast<size_t>(std::exp2(powers(worker.random)));
  block.begin = static_cast<char*>(malloc(block.bytes));
  if (block.begin == nullptr) fail("malloc");
  memset(block.begin, worker.number + 1, block.bytes);
  return block;
}

void fill(Worker& worker) {
  for (size_t held = 0; held < run.bytes;) {
    worker.blocks.push_back(make(worker));
    held += worker.blocks.back().bytes;
  }
}

void empty(std::vector<Block>& blocks) {
  for (const Block& block : blocks) free(block.begin);
  blocks.clear();
}

// A part of the worker's blocks is replaced; every second one goes to the next node's worker. The
// two meet between parts, so that what was given is freed while both go on.
void replace(Worker& worker) {
  constexpr size_t kParts = 16;
  for (size_t part = 0; part < kParts; part++) {
    for (size_t i = 0; i < worker.blocks.size() / kParts; i++) {
      Block& block = worker.blocks[worker.random() % worker.blocks.size()];
      if (i % 2 == 0)
        worker.next_node->given.push_back(block);
      else
        free(block.begin);
      block = make(worker);
    }
    meet();
    empty(worker.given);
    meet();
  }
}

void* work(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  fill(worker);
  for (int round = 0; round < run.rounds; round++) {
    meet();  // all have their blocks
    if (worker.number == 0) tell("round", round);
    meet();
    if (round + 1 == run.rounds) break;
    if (run.pattern == "mixed") {
      replace(worker);
      continue;
    }
    if (run.pattern == "crossed") {
      worker.next_node->given.swap(worker.blocks);
      meet();
      empty(worker.given);
    } else {
      empty(worker.blocks);
    }
    meet();
    fill(worker);
  }
  return nullptr;
}

// ended, left: threads of the last node begin, hold their blocks, and end.
void* work_and_end(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  bool is_last = worker.node == run.nodes - 1;
  fill(worker);
  meet();
  if (worker.number == 0) tell("all hold", 0);
  meet();
  if (is_last) {
    if (run.pattern == "left")
      worker.next_node->given.swap(worker.blocks);
    else
      empty(worker.blocks);
  }
  meet();
  if (is_last) return nullptr;
  empty(worker.given);
  return nullptr;
}

void start(Worker& worker, void* (*function)(void*)) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(worker.processor, &set);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
  if (pthread_create(&worker.thread, &attributes, function, &worker) != 0) fail("pthread_create");
  pthread_attr_destroy(&attributes);
}

void* fill_more(void* argument) {
  fill(*static_cast<Worker*>(argument));
  return nullptr;
}

void end_and_look() {
  for (Worker& worker : run.workers) pthread_join(worker.thread, nullptr);
  tell("ended", 1);
  sleep(static_cast<unsigned>(run.rounds));
  tell("after a pause", 2);
  for (Worker& worker : run.workers)
    if (worker.node != run.nodes - 1) start(worker, fill_more);
  for (Worker& worker : run.workers)
    if (worker.node != run.nodes - 1) pthread_join(worker.thread, nullptr);
  tell("others hold more", 3);
}

void find_processors() {
  std::vector<std::vector<int>> processors;
  for (int node = 0; node < kMostNodes; node++) {
    processors.push_back(processors_of(node));
    if (processors.back().empty()) break;
    run.nodes++;
  }
  for (int node = 0; node < run.nodes; node++)
    for (int processor : processors[node]) {
      Worker& worker = run.workers.emplace_back();
      worker.processor = processor;
      worker.node = node;
      worker.number = static_cast<int>(run.workers.size()) - 1;
      worker.random.seed(static_cast<unsigned>(worker.number + 1));
    }
  size_t each = run.workers.size() / static_cast<size_t>(run.nodes);
  for (size_t i = 0; i < run.workers.size(); i++)
    run.workers[i].next_node = &run.workers[(i + each) % run.workers.size()];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: nodes PATTERN SMALLEST LARGEST MIB ROUNDS\n");
    return 2;
  }
  run.pattern = argv[1];
  run.smallest = strtoul(argv[2], nullptr, 10);
  run.largest = strtoul(argv[3], nullptr, 10);
  run.bytes = strtoul(argv[4], nullptr, 10) << 20u;
  run.rounds = atoi(argv[5]);
  find_processors();
  pthread_barrier_init(&run.barrier, nullptr, static_cast<unsigned>(run.workers.size()));
  bool is_ended = run.pattern == "ended" || run.pattern == "left";
  for (Worker& worker : run.workers) start(worker, is_ended ? work_and_end : work);
  if (is_ended)
    end_and_look();
  else
    for (Worker& worker : run.workers) pthread_join(worker.thread, nullptr);
  return 0;
}
