// SPDX-License-Identifier: BSD-3-Clause
//
// Foreign calls over memory of malloc's: a checked build reports each call with the address and
// aborts; a release build lets it through, and what happens then is what docs/behaviours.md says.
//
// Seen to fail: with check_foreign_call() returning at once (all that are reported), and with it
// not asking for the purge turn (purges of our own).
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/alloc_under_test.h"
#include "tests/support/process.h"

// Where libc has it (2.36).
extern "C" __attribute__((weak)) ssize_t process_madvise(int pidfd, const iovec* ranges,
                                                         size_t count, int advice,
                                                         unsigned flags) noexcept;
extern "C" __attribute__((weak)) int64_t rdmalloc_purge(size_t keep_bytes);

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

size_t page_bytes() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Whole pages of malloc's, in a slab and in a large block.
char* pages_of_malloc(size_t pages = 4) {
  auto* block = static_cast<char*>(malloc((pages + 1) * page_bytes()));
  memset(block, 7, (pages + 1) * page_bytes());
  auto address = reinterpret_cast<uintptr_t>(block);
  return block + (page_bytes() - address % page_bytes()) % page_bytes();
}

int pidfd_of(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

class ForeignCalls : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#if RDMALLOC_CHECKED

// `call` must end in a report that names the function and the address that it was given.
void expect_reported(const std::string& name, const std::function<void(char*)>& call) {
  EXPECT_DEATH(call(pages_of_malloc()),
               "rdmalloc: " + name + " by others over memory of malloc's:? .*0x[0-9a-f]+");
}

TEST_F(ForeignCalls, checked_madvise_dontneed_is_reported) {
  expect_reported("madvise\\(MADV_DONTNEED\\)",
                  [](char* at) { madvise(at, page_bytes(), MADV_DONTNEED); });
}
TEST_F(ForeignCalls, checked_madvise_free_is_reported) {
  expect_reported("madvise\\(MADV_FREE\\)", [](char* at) { madvise(at, page_bytes(), MADV_FREE); });
}
TEST_F(ForeignCalls, checked_madvise_remove_is_reported) {
  expect_reported("madvise\\(MADV_REMOVE\\)",
                  [](char* at) { madvise(at, page_bytes(), MADV_REMOVE); });
}
TEST_F(ForeignCalls, checked_process_madvise_is_reported) {
  if (process_madvise == nullptr) GTEST_SKIP() << "SKIP: this libc has no process_madvise (2.36)";
  expect_reported("process_madvise", [](char* at) {
    iovec range = {at, page_bytes()};
    process_madvise(pidfd_of(getpid()), &range, 1, MADV_DONTNEED, 0);
  });
}
TEST_F(ForeignCalls, checked_mremap_is_reported) {
  expect_reported(
      "mremap", [](char* at) { (void)mremap(at, page_bytes(), 2 * page_bytes(), MREMAP_MAYMOVE); });
}
TEST_F(ForeignCalls, checked_mremap_onto_it_is_reported) {
  expect_reported("mremap\\(MREMAP_FIXED\\)", [](char* at) {
    void* theirs =
        mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)mremap(theirs, page_bytes(), page_bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, at);
  });
}
TEST_F(ForeignCalls, checked_mmap_fixed_is_reported) {
  expect_reported("mmap\\(MAP_FIXED\\)", [](char* at) {
    (void)mmap(at, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0);
  });
}
TEST_F(ForeignCalls, checked_munmap_is_reported) {
  expect_reported("munmap", [](char* at) { munmap(at, page_bytes()); });
}
TEST_F(ForeignCalls, checked_mprotect_is_reported) {
  expect_reported("mprotect", [](char* at) { mprotect(at, page_bytes(), PROT_NONE); });
  expect_reported("mprotect", [](char* at) { mprotect(at, page_bytes(), PROT_READ); });
}
TEST_F(ForeignCalls, checked_a_range_that_only_touches_it_is_reported) {
  // A whole gigabyte, as of a program that unmaps too much.
  expect_reported("munmap", [](char* at) { munmap(at - 16 * kMiB, 1024 * kMiB); });
  expect_reported("madvise\\(MADV_DONTNEED\\)",
                  [](char* at) { madvise(at, SIZE_MAX, MADV_DONTNEED); });
}

#else

// In a child, for what it does to the process: its status as of waitpid.
int in_child(const std::function<bool()>& body) {
  pid_t pid = fork();
  if (pid == 0) _exit(body() ? 0 : 1);
  int status = -1;
  EXPECT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status));
  return status;
}

// That malloc, which keeps nothing of its own in blocks, goes on.
bool malloc_goes_on() {
  std::vector<void*> blocks;
  for (size_t bytes = 16; bytes < 8 * kMiB; bytes = bytes * 3 / 2) {
    auto* block = static_cast<char*>(malloc(bytes));
    if (block == nullptr) return false;
    memset(block, 3, bytes);
    blocks.push_back(block);
  }
  for (void* block : blocks) free(block);
  return true;
}

TEST_F(ForeignCalls, release_emptied_pages_read_as_zero_and_malloc_goes_on) {
  for (size_t bytes : {20 * kKiB, 5 * kMiB}) {
    EXPECT_EQ(in_child([bytes] {
                auto* block = static_cast<char*>(aligned_alloc(page_bytes(), bytes));
                memset(block, 7, bytes);
                if (madvise(block, page_bytes(), MADV_DONTNEED) != 0) return false;
                if (block[0] != 0 || block[page_bytes()] != 7) return false;
                free(block);
                return malloc_goes_on();
              }),
              0)
        << bytes;
  }
}
TEST_F(ForeignCalls, release_madvise_free_leaves_the_block_usable) {
  EXPECT_EQ(in_child([] {
              char* at = pages_of_malloc();
              if (madvise(at, page_bytes(), MADV_FREE) != 0) return false;
              if (at[5] != 7 && at[5] != 0) return false;
              memset(at, 9, page_bytes());
              return at[5] == 9 && malloc_goes_on();
            }),
            0);
}
TEST_F(ForeignCalls, release_madvise_remove_is_refused_by_the_kernel) {
  char* at = pages_of_malloc();
  EXPECT_EQ(madvise(at, page_bytes(), MADV_REMOVE), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(at[5], 7);
}
TEST_F(ForeignCalls, release_process_madvise_is_as_madvise_or_refused) {
  if (process_madvise == nullptr) GTEST_SKIP() << "SKIP: this libc has no process_madvise (2.36)";
  char* at = pages_of_malloc();
  iovec range = {at, page_bytes()};
  ssize_t done = process_madvise(pidfd_of(getpid()), &range, 1, MADV_DONTNEED, 0);
  printf("process_madvise(MADV_DONTNEED): %zd\n", done);
  EXPECT_EQ(at[5], done < 0 ? 7 : 0);
}
TEST_F(ForeignCalls, release_pages_mapped_anew_belong_to_the_block) {
  EXPECT_EQ(in_child([] {
              char* at = pages_of_malloc(1000);
              void* got = mmap(at, page_bytes(), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
              return got == at && at[0] == 0 && malloc_goes_on();
            }),
            0);
}
TEST_F(ForeignCalls, release_protected_pages_fault_until_they_are_unprotected) {
  int status = in_child([] {
    char* at = pages_of_malloc();
    if (mprotect(at, page_bytes(), PROT_READ) != 0) return false;
    *at = 1;
    return true;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  EXPECT_EQ(in_child([] {
              char* at = pages_of_malloc();
              if (mprotect(at, page_bytes(), PROT_NONE) != 0 ||
                  mprotect(at, page_bytes(), PROT_READ | PROT_WRITE) != 0)
                return false;
              return *at == 7 && malloc_goes_on();
            }),
            0);
}
TEST_F(ForeignCalls, release_unmapped_or_moved_pages_fault_at_the_next_touch) {
  for (bool moves : {false, true}) {
    int status = in_child([moves] {
      char* at = pages_of_malloc();
      if (moves) {
        void* elsewhere =
            mmap(nullptr, page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mremap(at, page_bytes(), page_bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) !=
            elsewhere)
          return false;
      } else if (munmap(at, page_bytes()) != 0) {
        return false;
      }
      *static_cast<volatile char*>(at) = 1;
      return true;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  }
}

#endif

// What must pass in every build.
TEST_F(ForeignCalls, calls_beside_our_memory_and_harmless_ones_pass) {
  const size_t page = page_bytes();
  char* at = pages_of_malloc();
  EXPECT_EQ(madvise(at, page, MADV_WILLNEED), 0);
  EXPECT_EQ(madvise(at, page, MADV_DONTFORK), 0);
  EXPECT_EQ(madvise(at, page, MADV_DOFORK), 0);
  EXPECT_EQ(mprotect(at, page, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(at[0], 7);
  char* theirs = static_cast<char*>(
      mmap(nullptr, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(theirs, MAP_FAILED);
  EXPECT_EQ(madvise(theirs, page, MADV_DONTNEED), 0);
  EXPECT_EQ(madvise(theirs, page, MADV_FREE), 0);
  EXPECT_EQ(mprotect(theirs, page, PROT_NONE), 0);
  EXPECT_EQ(mmap(theirs, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), theirs);
  EXPECT_EQ(munmap(theirs, 8 * page), 0);
  if (process_madvise != nullptr) {
    // The same address in another process is not ours; nor is what the kernel only moves.
    pid_t other = fork();
    if (other == 0) {
      pause();
      _exit(0);
    }
    int fd = pidfd_of(other);
    iovec range = {at, page};
    EXPECT_EQ(process_madvise(fd, &range, 1, MADV_DONTNEED, 0), -1);  // no kernel takes that
    int own = pidfd_of(getpid());
    process_madvise(own, &range, 1, MADV_WILLNEED, 0);  // whatever the kernel says
    EXPECT_EQ(*at, 7) << "was changed";
    close(own);
    kill(other, SIGKILL);
    int status = 0;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(other, 30000, &status));
    close(fd);
  }
}

TEST_F(ForeignCalls, purges_of_our_own_are_none) {
  if (rdmalloc_purge == nullptr) {
    ASSERT_EQ(getenv("LD_PRELOAD"), nullptr) << "rdmalloc is not in it";
    GTEST_SKIP() << "SKIP: not on rdmalloc";
  }
  for (int round = 0; round < 20; round++) {
    std::vector<void*> blocks;
    for (int i = 0; i < 2000; i++) {
      blocks.push_back(malloc(i % 100 == 0 ? kMiB : 500));
      memset(blocks.back(), 1, 500);
    }
    for (void* block : blocks) free(block);
    EXPECT_GE(rdmalloc_purge(0), 0);
  }
}

}  // namespace
