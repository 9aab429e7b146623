// SPDX-License-Identifier: BSD-3-Clause
//
// A kernel that says it took pages away and did not: a seccomp filter that answers 0 in its place,
// as sandboxes have them, and old emulators. What lies there is no zeroes; it stays dirty.
//
// Seen to fail without the probe: calloc() returned what had been there before, of large blocks and
// of the pages of a slab.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <rdmalloc/rdmalloc.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;

constexpr size_t kMiB = size_t{1} << 20;

// Every madvise(MADV_DONTNEED) of this thread returns 0 and does nothing from here on.
void let_the_kernel_lie() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
  };
  sock_fprog filter = {sizeof program / sizeof program[0], program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(9);
}

bool is_zero(const char* block, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (block[i] != 0) return false;
  return true;
}

// What is wrong, or nullptr.
const char* use(size_t bytes, size_t count) {
  std::vector<char*> blocks(count);
  for (char*& block : blocks) block = static_cast<char*>(memset(rdmalloc_malloc(bytes), 1, bytes));
  for (char* block : blocks) rdmalloc_free(block);
  uint64_t failures = counter("stats.purge_failures");
  if (rdmalloc_purge(0) != 0) return "a purge that did nothing was counted in bytes";
  if (counter("stats.purge_failures") == failures) return "it was not counted as a failure";
  for (char*& block : blocks) {
    block = static_cast<char*>(rdmalloc_calloc(1, bytes));
    if (!is_zero(block, bytes)) return "calloc() of what was freed is not zero";
  }
  for (char* block : blocks) rdmalloc_free(block);
  return nullptr;
}

TEST(LyingKernel, what_was_not_taken_away_is_not_taken_for_zeroes) {
  for (size_t bytes : {4 * kMiB, size_t{100000}}) {
    pid_t child = fork();
    if (child == 0) {
      // Told the truth before: a filter may come at any time.
      rdmalloc_free(memset(rdmalloc_malloc(kMiB), 1, kMiB));
      if (rdmalloc_purge(0) <= 0) _exit(2);
      let_the_kernel_lie();
      const char* wrong = use(bytes, 8 * kMiB / bytes);
      if (wrong != nullptr) dprintf(2, "%s, of blocks of %zu\n", wrong, bytes);
      _exit(wrong == nullptr ? 0 : 1);
    }
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(child, 30000, &status));
    EXPECT_EQ(status, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
