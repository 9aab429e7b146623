// SPDX-License-Identifier: BSD-3-Clause
//
// What growth to 16 MiB costs, in bytes copied and system calls: by doubling, as of a vector, and
// by steps of 64 KiB, as of a file that is read in. Counts only. The program starts itself anew to
// be traced, "grow" or not, and tells by its exit status how often the block was moved. And what
// memory it costs where many blocks grow.
//
// Seen to fail: with large_allocate_growing() refusing, so that no room is left behind a block; the
// arrays with places of 2 MiB and more that are whole huge pages.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/support/counters.h"
#include "tests/support/trace.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::KernelUse;
using rdmalloc_test::trace_program;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kEnd = 16 * kMiB;

struct Growth {
  int moves = 0;
  size_t copied = 0;
};

// Each new byte is written, as a program that grows a block does. With `others`, blocks that others
// keep are made between the steps.
Growth grow(size_t from, bool doubles, bool others) {
  Growth growth;
  size_t bytes = from;
  auto* block = static_cast<char*>(rdmalloc_malloc(bytes));
  memset(block, 1, bytes);
  while (bytes < kEnd) {
    if (others)
      for (size_t i = 0; i < 50; i++) memset(rdmalloc_malloc(1 + i * 40), 2, 1);
    size_t next = doubles ? 2 * bytes : bytes + from;
    auto* grown = static_cast<char*>(rdmalloc_realloc(block, next));
    if (grown == nullptr) abort();
    if (grown != block) {
      growth.moves++;
      growth.copied += bytes;
    }
    block = grown;
    memset(block + bytes, 1, next - bytes);
    bytes = next;
  }
  rdmalloc_free(block);
  return growth;
}

std::string own_path() {
  char path[4096] = {};
  if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) abort();
  return path;
}

struct Case {
  const char* name;
  size_t from;
  bool doubles;
  int most_moves;
  size_t most_copied;
};
void PrintTo(const Case& how, std::ostream* out) {  // for gtest: bytes of a struct say nothing
  *out << how.name;
}
// By doubling, a block moves while it is small, and grows in place once it is a span: 12 times and
// 127 KiB, seen. By steps it moves, where others lie behind it, to where there is a sixth more
// room: 5 times and 31 MiB; alone once, and 128 KiB.
constexpr Case kCases[] = {
    {"doubling", 16, true, 20, kMiB},
    {"steps", 64 * kKiB, false, 8, 3 * kEnd},
};

class ReallocCalls : public ::testing::TestWithParam<Case> {};

TEST_P(ReallocCalls, growth_to_16_mib_is_copied_a_few_times) {
  const Case& how = GetParam();
  for (bool others : {false, true}) {
    Growth growth = grow(how.from, how.doubles, others);
    printf("%s%s: %d moves, %zu KiB copied\n", how.name, others ? " beside others" : "",
           growth.moves, growth.copied / kKiB);
    EXPECT_LE(growth.moves, how.most_moves);
    EXPECT_LE(growth.copied, others ? how.most_copied : kMiB);
  }
}

TEST_P(ReallocCalls, growth_to_16_mib_makes_a_handful_of_system_calls) {
  const Case& how = GetParam();
  KernelUse nothing = trace_program({own_path(), "nothing"}, {});
  KernelUse grown = trace_program({own_path(), how.name}, {});
  ASSERT_EQ(nothing.status, 0);
  ASSERT_TRUE(WIFEXITED(grown.status)) << grown.status;
  int calls = grown.all_calls() - nothing.all_calls();
  printf("%s: %d moves, %d system calls, %ld page faults\n", how.name, WEXITSTATUS(grown.status),
         calls, grown.page_faults - nothing.page_faults);
  // The arena is made usable in steps that double, the front of it is asked to be huge.
  EXPECT_LE(calls, 24);
  EXPECT_EQ(grown.calls_of(SYS_mremap), 0);
  EXPECT_EQ(grown.calls_of(SYS_munmap), nothing.calls_of(SYS_munmap));
}

// A hundred arrays grow beside each other by an eighth, in turn. Each has a sixth more than it
// asked for when it was last moved, and no more: 10 % over all, seen; 15 % with a quarter, and 39 %
// where those of 2 MiB and more take whole huge pages besides.
TEST(ReallocCalls, arrays_that_grow_beside_each_other_take_a_sixth_more) {
  size_t before = counter("stats.used_bytes"), asked = 0;
  std::vector<void*> arrays(100);
  for (size_t bytes = 64 * kKiB; bytes < 3 * kMiB; bytes += bytes / 8)
    for (void*& array : arrays) {
      array = rdmalloc_realloc(array, bytes);
      ASSERT_NE(array, nullptr);
      asked = bytes * arrays.size();
    }
  size_t taken = counter("stats.used_bytes") - before;
  printf("%zu MiB in arrays, %zu taken, %zu mapped\n", asked / kMiB, taken / kMiB,
         counter("stats.mapped_bytes") / kMiB);
  EXPECT_LE(taken, asked + asked / 6);
  for (void* array : arrays) rdmalloc_free(array);
  rdmalloc_purge(0);  // no place of theirs for what the others grow
}

INSTANTIATE_TEST_SUITE_P(Growth, ReallocCalls, ::testing::ValuesIn(kCases),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace

int main(int argc, char** argv) {
  for (const Case& how : kCases)
    if (argc == 2 && strcmp(argv[1], how.name) == 0)
      return grow(how.from, how.doubles, false).moves;
  if (argc == 2 && strcmp(argv[1], "nothing") == 0) {
    rdmalloc_free(rdmalloc_malloc(1));
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
