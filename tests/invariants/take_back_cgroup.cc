// SPDX-License-Identifier: BSD-3-Clause
//
// The phases of take_back_test.cc in a cgroup, which refuses nothing and kills: at most 8 MiB live
// and 4 MiB to note them, every byte written, where 48 MiB may be charged beyond what the program
// begins with. Preloaded with RDMALLOC_LIMIT=32M: without that setting free blocks of sizes that
// are not in use stay in caches for a while, 60 to 66 MiB with what is live.
//
//   take_back_cgroup FOLDER        the phases; FOLDER is where a cgroup can be made
//   take_back_cgroup FOLDER more   64 MiB live, which the kernel must end: the limit is one
//
// One thread makes them, then four at once. Seen to be killed: without the setting.
#include <errno.h>
#include <sys/stat.h>
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

// Of version 2, or 1. Not removed: this process is in it to its end, and the test that made the
// folder removes it.
void enter_cgroup(const std::string& folder) {
  std::string cgroup = folder + "/take_back_cgroup";
  if (mkdir(cgroup.c_str(), 0700) != 0 && errno != EEXIST) fail("cannot make", cgroup);
  std::string limit = std::to_string(rdmalloc_test::resident_bytes() + kMost);
  if (!write_file(cgroup + "/memory.max", limit) &&
      !write_file(cgroup + "/memory.limit_in_bytes", limit))
    fail("no limit can be set for", cgroup);
  // Absent where the kernel counts no swap.
  write_file(cgroup + "/memory.swap.max", "0");
  write_file(cgroup + "/memory.memsw.limit_in_bytes", limit);
  if (!write_file(cgroup + "/cgroup.procs", std::to_string(getpid()))) fail("cannot enter", cgroup);
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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) fail("in which folder", "?");
  enter_cgroup(argv[1]);
  if (argc > 2) {
    void* block = std::malloc(kTooMuch);
    if (block == nullptr) fail("refused:", std::to_string(kTooMuch));
    std::memset(block, 1, kTooMuch);
    fail("not killed with as much as", std::to_string(kTooMuch));
  }
  for (int round = 0; round < 2; round++) phases(kLive);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back(phases, kLive / 4);
  for (std::thread& thread : threads) thread.join();
  void* block = std::malloc(4 * kMiB);
  if (block == nullptr) fail("refused with nothing in use:", "4 MiB");
  std::memset(block, 1, 4 * kMiB);
  std::free(block);
  std::puts("all is well");
  return 0;
}
