// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels with pages of 16 and 64 KiB (aarch64, POWER), played here: this program's getauxval() is
// what the allocator asks for the page size, and from its first allocation on a seccomp filter
// turns every call over the arena that is not made of whole pages into SIGSYS. Such a kernel
// refuses an address inside a page, and rounds a length up: neighbours would lose their bytes in
// silence. Not played: the pages that are backed at each touch are still small.
//
// Seen to fail: with 4096 written into arena.page_bytes.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <rdmalloc/rdmalloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Random;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

size_t played_page_bytes = 0;

}  // namespace

// In the place of libc's, for the allocator only: libc itself has the page size elsewhere.
extern "C" unsigned long getauxval(unsigned long type) noexcept {
  if (type == AT_PAGESZ && played_page_bytes != 0) return played_page_bytes;
  static auto* const real =
      reinterpret_cast<unsigned long (*)(unsigned long)>(dlsym(RTLD_NEXT, "getauxval"));
  return real(type);
}

namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

void on_part_of_a_page(int, siginfo_t* info, void*) {
  dprintf(2, "system call %d over a part of a page\n", info->si_syscall);
  _exit(9);
}

// From now on, in threads started later too: mprotect, madvise, munmap and mremap over the arena
// take whole pages only.
void allow_whole_pages_only() {
  uintptr_t base = 0;
  size_t length = 0;
  if (rdmalloc_arena_extent(&base, &length) != 0) _exit(3);
  struct sigaction action {};
  action.sa_sigaction = on_part_of_a_page;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  // A filter has 32-bit words: the arena begins and ends where the upper one changes, or is
  // refused.
  uintptr_t last = base + length - 1;
  auto lowest = static_cast<uint32_t>(base >> 32u), highest = static_cast<uint32_t>(last >> 32u);
  auto inside = static_cast<uint32_t>(played_page_bytes - 1);
  constexpr uint32_t kArguments = offsetof(seccomp_data, args);
  // clang-format off
#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)
#define IF_IS(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, then, otherwise)
  const sock_filter filter[] = {
      LOAD(offsetof(seccomp_data, arch)), IF_IS(kArchitecture, 0, 12),
      LOAD(offsetof(seccomp_data, nr)),
      IF_IS(SYS_mprotect, 3, 0), IF_IS(SYS_madvise, 2, 0), IF_IS(SYS_munmap, 1, 0),
      IF_IS(SYS_mremap, 0, 7),
      LOAD(kArguments + 4),  // the address's upper word
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, lowest, 0, 5),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, highest, 4, 0),
      LOAD(kArguments), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, inside, 3, 0),
      LOAD(kArguments + 8), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, inside, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  // clang-format on
  sock_fprog program = {sizeof filter / sizeof filter[0], const_cast<sock_filter*>(filter)};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
    _exit(4);
}

bool storm(uint64_t seed, int steps) {
  struct Block {
    unsigned char* start;
    size_t bytes;
  } blocks[300] = {};
  Random random(seed);
  for (int step = 0; step < steps; step++) {
    size_t at = random.below(300);
    Block& block = blocks[at];
    auto mark = static_cast<unsigned char>(at);
    if (block.start != nullptr) {
      for (size_t i = 0; i < block.bytes; i += 997)
        if (block.start[i] != mark) return false;
      if (block.start[block.bytes - 1] != mark) return false;
      rdmalloc_free(block.start);
      block.start = nullptr;
      continue;
    }
    block.bytes = random.size_between(1, random.below(20) == 0 ? 3 * kMiB : 20 * kKiB);
    block.start = static_cast<unsigned char*>(rdmalloc_malloc(block.bytes));
    if (block.start == nullptr) return false;
    memset(block.start, mark, block.bytes);
  }
  for (Block& block : blocks) rdmalloc_free(block.start);
  return true;
}

// The exit code: 0 when all went well.
int live_on_pages_of(size_t bytes) {
  played_page_bytes = bytes;
  rdmalloc_free(rdmalloc_malloc(1));
  allow_whole_pages_only();
  void* block = rdmalloc_valloc(1);
  if (reinterpret_cast<uintptr_t>(block) % bytes != 0) return 10;
  rdmalloc_free(block);
  block = rdmalloc_pvalloc(1);
  if (rdmalloc_malloc_usable_size(block) < bytes) return 11;
  rdmalloc_free(block);
  if (!storm(1, 20000)) return 12;
  // Slabs held in place by a few blocks, so that single pages of them are given back.
  std::vector<void*> held, all;
  for (int i = 0; i < 200000; i++) {
    all.push_back(rdmalloc_malloc(500));
    memset(all.back(), 5, 500);
  }
  for (size_t i = 0; i < all.size(); i++)
    if (i % 1500 == 0)
      held.push_back(all[i]);
    else
      rdmalloc_free(all[i]);
  for (int i = 0; i < 5; i++)
    if (rdmalloc_purge(0) < 0) return 13;
  for (void* each : held)
    for (int i = 0; i < 500; i++)
      if (static_cast<char*>(each)[i] != 5) return 14;
  rdmalloc_heap* heap = nullptr;
  if (rdmalloc_heap_create(nullptr, &heap) != 0) return 15;
  for (size_t size = 64; size < 2 * kMiB; size = size * 3 / 2)
    if (void* in_heap = rdmalloc_heap_malloc(heap, size)) memset(in_heap, 1, size);
  if (rdmalloc_heap_destroy(heap) != 0 || rdmalloc_purge(0) < 0) return 16;
  bool good = true;
  std::thread other([&] { good = storm(2, 10000); });
  good = storm(3, 10000) && good;
  other.join();
  for (void* each : held) rdmalloc_free(each);
  if (rdmalloc_purge(0) < 0 || !good) return 17;
  printf("purges %lu\n", counter("stats.purges"));
  return counter("stats.purges") > 0 ? 0 : 18;
}

class PageSizes : public ::testing::TestWithParam<size_t> {};

TEST_P(PageSizes, every_call_over_the_arena_is_of_whole_pages) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(_exit(live_on_pages_of(GetParam())), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Played, PageSizes, ::testing::Values(4 * kKiB, 16 * kKiB, 64 * kKiB),
                         [](const auto& instance) {
                           return std::to_string(instance.param / kKiB) + "_KiB";
                         });

// That the filter sees what it is there for.
TEST(PageSizesControl, a_part_of_a_page_is_caught) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        played_page_bytes = 64 * kKiB;
        void* block = rdmalloc_malloc(kMiB);
        allow_whole_pages_only();
        syscall(SYS_madvise, block, 4096, MADV_DONTNEED);
        _exit(0);
      },
      ::testing::ExitedWithCode(9), "over a part of a page");
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual", "RDMALLOC_ARENA=8G"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
