// SPDX-License-Identifier: BSD-3-Clause
//
// What the preload costs a program that does nothing, as counts: system calls, page faults,
// resident memory. Times would be the machine's.
//
// Seen to fail: with the limits of memory looked up four times.
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/syscall.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/trace.h"

namespace {

using rdmalloc_test::KernelUse;
using rdmalloc_test::trace_program;

const std::string kPreload = "LD_PRELOAD=" RDMALLOC_LIBRARY;

// The least of some runs: what page cache and address layout add is no part of it.
KernelUse least(const std::vector<std::string>& environment) {
  KernelUse best;
  for (int run = 0; run < 5; run++) {
    KernelUse use = trace_program({"/bin/true"}, environment);
    EXPECT_EQ(use.status, 0);
    if (run == 0) best = use;
    best.page_faults = std::min(best.page_faults, use.page_faults);
    best.peak_kib = std::min(best.peak_kib, use.peak_kib);
  }
  return best;
}

TEST(StartUp, a_program_that_does_nothing_pays_little) {
  KernelUse without = least({}), with = least({kPreload});
  for (const auto& [number, count] : with.calls)
    if (count != without.calls_of(number))
      printf("call %ld: %d, without the preload %d\n", number, count, without.calls_of(number));
  printf("%d calls, %d without; %ld page faults, %ld without; %ld KiB, %ld without\n",
         with.all_calls(), without.all_calls(), with.page_faults, without.page_faults,
         with.peak_kib, without.peak_kib);
  // 21 seen: 11 of the loader, 5 for the arena, its tables and the pools.
  EXPECT_LE(with.all_calls(), without.all_calls() + 26);
  // 24 seen, and 336 KiB.
  EXPECT_LE(with.page_faults, without.page_faults + 60);
  EXPECT_LE(with.peak_kib, without.peak_kib + 2048);
  EXPECT_EQ(with.calls_of(SYS_clone), 0) << "a thread for a program that has none";
#if defined(SYS_clone3)
  EXPECT_EQ(with.calls_of(SYS_clone3), 0) << "a thread for a program that has none";
#endif
}

}  // namespace
