// SPDX-License-Identifier: BSD-3-Clause
//
// What the arena gives up as the program lowers RLIMIT_AS, and takes again later.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "alloc/os/sanitizers.h"
#include "alloc/pages/page_heap.h"
#include "tests/support/process.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// The tables of a part that the kernel refuses are there before it, and go with what is given up.
// Seen to fail, by SIGSEGV, where they count as usable for ever.
TEST(AddressLimit, what_is_given_up_is_usable_once_it_is_taken_again) {
  if (rdmalloc::os::kAddressSanitizer || rdmalloc::os::kThreadSanitizer)
    GTEST_SKIP() << "SKIP: the kernel's limits are no limits for the memory of sanitizers";
  auto refused_and_taken = [] {
    constexpr size_t kBytes = 64 * kMiB;
    // So much is below the frontier that one of kBytes might be there: no more of it is asked for.
    void* held = rdmalloc_malloc(2 * kBytes);
    rlimit limit = {(rdmalloc_test::status_kib("VmData") << 10) + 8 * kMiB, RLIM_INFINITY};
    if (held == nullptr || setrlimit(RLIMIT_DATA, &limit) != 0) _exit(1);
    if (rdmalloc_malloc(kBytes) != nullptr) _exit(2);
    rdmalloc::page_heap_fit_limit();
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_DATA, &limit);
    void* block = rdmalloc_malloc(kBytes);
    if (block == nullptr) _exit(3);
    memset(block, 1, kBytes);
    rdmalloc_free(block);
    _exit(rdmalloc::page_heap_is_valid() ? 0 : 4);
  };
  EXPECT_EXIT(refused_and_taken(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
