// SPDX-License-Identifier: BSD-3-Clause
//
// Where the arena lies when the program has mapped its place before it: the kernel is asked for
// addresses by a hint, and answers with others where those are taken. Seen to fail with what it
// answers taken for what was asked, and with what it mapped elsewhere left there.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/os/sanitizers.h"
#include "alloc/pages/arena.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::status_kib;

constexpr size_t kMiB = size_t{1} << 20;

// What the program has there, with bytes of its own in the first MiB.
class Taken {
 public:
  Taken(uintptr_t address, size_t bytes)
      : at_(static_cast<unsigned char*>(mmap(reinterpret_cast<void*>(address), bytes,
                                             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                             -1, 0))),
        bytes_(bytes) {
    if (at_ != reinterpret_cast<void*>(address)) _exit(10);
    memset(at_, 0x5A, kMiB);
  }
  bool is_whole() const {
    for (size_t i = 0; i < kMiB; i++)
      if (at_[i] != 0x5A) return false;
    return true;
  }
  bool overlaps(const void* block, size_t bytes) const {
    auto* begin = static_cast<const unsigned char*>(block);
    return begin < at_ + bytes_ && at_ < begin + bytes;
  }

 private:
  unsigned char* at_;
  size_t bytes_;
};

struct Arena {
  uintptr_t base;
  uint64_t kib;  // of addresses
};
Arena arena_of_first_malloc() {
  uint64_t before = status_kib("VmSize");
  rdmalloc_free(rdmalloc_malloc(1));
  return {rdmalloc::arena.base, status_kib("VmSize") - before};
}

// The processes of a fork have the same random bits, and so the same place.
TEST(ArenaPlace, a_place_that_is_taken_is_left_to_the_program) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t first = fork();
  if (first == 0) {
    Arena arena = arena_of_first_malloc();
    _exit(write(ends[1], &arena, sizeof arena) == sizeof arena ? 0 : 1);
  }
  Arena free_place = {};
  ASSERT_EQ(read(ends[0], &free_place, sizeof free_place), ssize_t{sizeof free_place});
  ASSERT_EQ(waitpid(first, nullptr, 0), first);
  close(ends[0]);
  close(ends[1]);
  auto beside_it = [&] {
    Taken taken(free_place.base + 8 * kMiB, kMiB);
    Arena arena = arena_of_first_malloc();
    void* block = rdmalloc_malloc(64 * kMiB);
    if (block == nullptr || taken.overlaps(block, 64 * kMiB)) _exit(1);
    memset(block, 1, 64 * kMiB);
    if (!taken.is_whole()) _exit(2);
    // Room for what is aligned, and nothing else.
    _exit(arena.kib <= free_place.kib + 4096 ? 0 : 3);
  };
  EXPECT_EXIT(beside_it(), ::testing::ExitedWithCode(0), "");
}

// Under a limit the arena is reserved in parts.
TEST(ArenaPlace, a_place_that_it_would_grow_into_is_left_to_the_program) {
  if (rdmalloc::os::kAddressSanitizer || rdmalloc::os::kThreadSanitizer)
    GTEST_SKIP() << "SKIP: the kernel's limits are no limits for the memory of sanitizers";
  auto grow = [] {
    rlimit limit = {(status_kib("VmSize") << 10) + 1024 * kMiB, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(4);
    rdmalloc_free(rdmalloc_malloc(1));
    if (rdmalloc::arena.extent() <=
        rdmalloc::arena.address_of(rdmalloc::arena.reserved) - rdmalloc::arena.base + 16 * kMiB)
      _exit(5);
    // As long as what it would reserve next, which is half of what it has.
    Taken taken(rdmalloc::arena.address_of(rdmalloc::arena.reserved), 256 * kMiB);
    int blocks = 0;
    for (void* block; (block = rdmalloc_malloc(16 * kMiB)) != nullptr; blocks++) {
      if (taken.overlaps(block, 16 * kMiB)) _exit(1);
      memset(block, 1, 16 * kMiB);
    }
    if (!taken.is_whole()) _exit(2);
    uint64_t refused_kib = status_kib("VmSize");
    if (rdmalloc_malloc(16 * kMiB) != nullptr) _exit(6);
    if (status_kib("VmSize") != refused_kib) _exit(3);
    _exit(blocks > 4 ? 0 : 7);
  };
  EXPECT_EXIT(grow(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
