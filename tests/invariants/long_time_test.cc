// SPDX-License-Identifier: BSD-3-Clause
//
// I7 after a long time: a program of one thread frees memory, and makes its second thread, with
// which the purge thread comes, 30 days later. The days pass in a time namespace.
//
// Seen to fail with spans' ages told by their difference alone: what was free for 25 to 50 days was
// taken for young, and kept what was freed since from going, too.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/counters.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::wait_until;

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

// Blocks of many lengths, free between others and in the quick list.
void use_and_free(size_t count) {
  std::vector<void*> blocks;
  for (size_t i = 0; i < count; i++) {
    blocks.push_back(rdmalloc_malloc(200'000 + i * 5'000));
    memset(blocks.back(), 1, 200'000);
  }
  for (void* block : blocks) rdmalloc_free(block);
}

// False, with errno: not here.
bool let_pass(int days) {
  if (unshare(CLONE_NEWTIME) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWTIME) != 0) return false;
  int offsets = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
  std::string offset = "monotonic " + std::to_string(days * 86400) + " 0\n";
  bool is_set = write(offsets, offset.data(), offset.size()) == ssize_t(offset.size());
  close(offsets);
  int space = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
  bool is_there = is_set && setns(space, CLONE_NEWTIME) == 0;
  close(space);
  return is_there;
}

TEST(LongTime, I7_what_was_free_for_a_month_goes_with_the_rest) {
  rdmalloc_test::set("purge.decay_ms", 100);
  use_and_free(200);
  ASSERT_GT(counter("stats.dirty_bytes"), 0u);
  if (!let_pass(30)) GTEST_SKIP() << "SKIP: no time namespace here: " << strerror(errno);
  use_and_free(20);
  ASSERT_EQ(rdmalloc_init(), 0);
  wait_until([] { return counter("stats.dirty_bytes") == 0; });
  // And goes on by age.
  use_and_free(20);
  wait_until([] { return counter("stats.dirty_bytes") == 0; });
  EXPECT_EQ(rdmalloc_fini(), 0);
}

}  // namespace
