// SPDX-License-Identifier: BSD-3-Clause
//
// The phases of take_back_test.cc in a cgroup, which refuses nothing and kills: at most 8 MiB live
// and 4 MiB to note them, every byte written, where 48 MiB may be charged beyond what the program
// begins with. Preloaded with RDMALLOC_LIMIT=32M: without that setting free blocks of sizes that
// are not in use stay in caches for a while, 60 to 66 MiB with what is live.
//
//   take_back_cgroup FOLDER        the phases; FOLDER is where a cgroup can be made
//   take_back_cgroup FOLDER more   64 MiB live, which the kernel must end: the limit is one
//   take_back_cgroup FOLDER high   five rounds on four threads where memory.high is 48 MiB, without
//                                  RDMALLOC_LIMIT: the kernel slows the program down at no moment
//   take_back_cgroup FOLDER swap DEVICE
//                                  80 MiB live where memory.max is 48 MiB and the rest is swapped
//                                  out: blocks keep their bytes, free memory goes back from swap as
//                                  well, and then the device can be taken out of use
//
// One thread makes them, then four at once. Seen to be killed: without the setting. Seen to be
// slowed down, 1,690 and 8,269 times in one round: with a limit that is looked up at the purge
// thread's ticks only, and no room (alloc/pages/limits.h).
#include <errno.h>
#include <malloc.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLive = 8 * kMiB, kMost = 48 * kMiB, kTooMuch = 64 * kMiB;

[[noreturn]] void fail(const char* what, const std::string& name) {
  std::fprintf(stderr, "take_back_cgroup: %s %s (errno %d)\n", what, name.c_str(), errno);
  std::_Exit(1);
}

bool write_file(const std::string& name, const std::string& text) {
  FILE* file = std::fopen(name.c_str(), "w");
  if (file == nullptr) return false;
  bool is_written = std::fputs(text.c_str(), file) >= 0;
  return std::fclose(file) == 0 && is_written;
}

// Not removed: this process is in it to its end, and the test that made the folder removes it.
std::string make_cgroup(const std::string& folder) {
  std::string cgroup = folder + "/take_back_cgroup";
  if (mkdir(cgroup.c_str(), 0700) != 0 && errno != EEXIST) fail("cannot make", cgroup);
  return cgroup;
}
void enter(const std::string& cgroup) {
  if (!write_file(cgroup + "/cgroup.procs", std::to_string(getpid()))) fail("cannot enter", cgroup);
}

// Of version 2, or 1.
void enter_limited(const std::string& folder) {
  std::string cgroup = make_cgroup(folder);
  std::string limit = std::to_string(rdmalloc_test::resident_bytes() + kMost);
  if (!write_file(cgroup + "/memory.max", limit) &&
      !write_file(cgroup + "/memory.limit_in_bytes", limit))
    fail("no limit can be set for", cgroup);
  // Absent where the kernel counts no swap.
  write_file(cgroup + "/memory.swap.max", "0");
  write_file(cgroup + "/memory.memsw.limit_in_bytes", limit);
  enter(cgroup);
}

// Four sizes to a doubling, 16 B to 4 MiB.
void phases(size_t live) {
  std::vector<void*> blocks;
  blocks.reserve(live / 16);
  for (size_t doubling = 16; doubling <= live / 2; doubling *= 2) {
    for (size_t quarter = 0; quarter < 4; quarter++) {
      size_t bytes = doubling + doubling * quarter / 4;
      for (size_t taken = 0; taken + bytes <= live; taken += bytes) {
        void* block = std::malloc(bytes);
        if (block == nullptr) fail("refused:", std::to_string(bytes));
        std::memset(block, 0x5C, bytes);
        blocks.push_back(block);
      }
      for (void* block : blocks) std::free(block);
      blocks.clear();
    }
  }
}

void phases_on_four_threads(int rounds) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([rounds] {
      for (int round = 0; round < rounds; round++) phases(kLive / 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of version 2, the only one that has it.
void run_below_high(const std::string& folder) {
  std::string cgroup = make_cgroup(folder);
  if (!write_file(cgroup + "/memory.high", std::to_string(kMost)))
    fail("no memory.high in", cgroup);
  enter(cgroup);
  phases_on_four_threads(5);
  FILE* events = std::fopen((cgroup + "/memory.events").c_str(), "r");
  unsigned long slowed = 1;
  if (events == nullptr || std::fscanf(events, "low %*u high %lu", &slowed) != 1)
    fail("cannot read", cgroup + "/memory.events");
  std::fclose(events);
  if (slowed != 0) fail("slowed down, times:", std::to_string(slowed));
}

unsigned long number_in(const std::string& name) {
  FILE* file = std::fopen(name.c_str(), "r");
  unsigned long number = 0;
  if (file == nullptr || std::fscanf(file, "%lu", &number) != 1) fail("cannot read", name);
  std::fclose(file);
  return number;
}

void check(const std::vector<unsigned char*>& blocks, size_t bytes, size_t step) {
  for (size_t i = 0; i < blocks.size(); i += step)
    for (size_t at : {size_t{0}, bytes / 2, bytes - 1})
      if (blocks[i][at] != static_cast<unsigned char>(i))
        fail("another byte in a block of", std::to_string(bytes));
}

void run_with_swap(const std::string& folder, const char* device) {
  std::string cgroup = make_cgroup(folder);
  if (!write_file(cgroup + "/memory.max", std::to_string(kMost)) ||
      !write_file(cgroup + "/memory.swap.max", std::to_string(128 * kMiB)))
    fail("no limits in", cgroup);
  enter(cgroup);
  constexpr size_t kBlock = 100000, kBlocks = 80 * kMiB / kBlock;
  std::vector<unsigned char*> blocks(kBlocks);
  std::thread([&] {
    for (size_t i = 0; i < kBlocks; i++) {
      blocks[i] = static_cast<unsigned char*>(std::malloc(kBlock));
      if (blocks[i] == nullptr) fail("refused:", std::to_string(kBlock));
      std::memset(blocks[i], static_cast<int>(i), kBlock);
    }
  }).join();
  if (number_in(cgroup + "/memory.swap.current") < 16 * kMiB)
    fail("nothing was swapped out in", cgroup);
  check(blocks, kBlock, 1);
  for (size_t i = 0; i < kBlocks; i++)
    if (i % 8 != 0) std::free(blocks[i]);
  malloc_trim(0);
  // 10 MiB are live, and a span of 128 KiB holds each block.
  unsigned long left =
      number_in(cgroup + "/memory.current") + number_in(cgroup + "/memory.swap.current");
  if (left > 32 * kMiB) fail("after all but 10 MiB were freed there are", std::to_string(left));
  if (swapoff(device) != 0) fail("cannot end the use of", device);
  check(blocks, kBlock, 8);
  for (size_t i = 0; i < kBlocks / 8; i++) {
    auto* block = static_cast<unsigned char*>(std::calloc(1, kBlock));
    if (block == nullptr) fail("refused:", std::to_string(kBlock));
    for (size_t at = 0; at < kBlock; at++)
      if (block[at] != 0) fail("no zero in a block of", std::to_string(kBlock));
    std::free(block);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) fail("in which folder", "?");
  bool is_high = argc > 2 && std::strcmp(argv[2], "high") == 0;
  if (is_high || (argc > 3 && std::strcmp(argv[2], "swap") == 0)) {
    is_high ? run_below_high(argv[1]) : run_with_swap(argv[1], argv[3]);
    std::puts("all is well");
    return 0;
  }
  enter_limited(argv[1]);
  if (argc > 2) {
    void* block = std::malloc(kTooMuch);
    if (block == nullptr) fail("refused:", std::to_string(kTooMuch));
    std::memset(block, 1, kTooMuch);
    fail("not killed with as much as", std::to_string(kTooMuch));
  }
  for (int round = 0; round < 2; round++) phases(kLive);
  phases_on_four_threads(1);
  void* block = std::malloc(4 * kMiB);
  if (block == nullptr) fail("refused with nothing in use:", "4 MiB");
  std::memset(block, 1, 4 * kMiB);
  std::free(block);
  std::puts("all is well");
  return 0;
}
