// SPDX-License-Identifier: BSD-3-Clause
//
// Corruption of the heap by the program: the message names the address, then the process aborts
// (I14). What a release build can see for nothing is tested in all builds; what only a `checked`
// build sees is tested there.
#include <gtest/gtest.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/alloc_under_test.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

// Frees `ptr`, which is wrong, after telling which address the message must hold.
void free_wrongly(void* ptr) {
  fprintf(stderr, "[wrong %p]\n", ptr);
  fflush(stderr);
  aut::free(ptr);
}
// The address told in "[wrong ...]" is named by a line of rdmalloc's after it.
class NamesTheAddress : public ::testing::MatcherInterface<const std::string&> {
 public:
  bool MatchAndExplain(const std::string& text, ::testing::MatchResultListener*) const override {
    size_t told = text.find("[wrong 0x");
    if (told == std::string::npos) return false;
    told += strlen("[wrong ");
    std::string address = text.substr(told, text.find(']', told) - told);
    size_t report = text.find("rdmalloc: ", told);
    if (report == std::string::npos) return false;
    std::string line = text.substr(report, text.find('\n', report) - report);
    return (line + " ").find(address + " ") != std::string::npos;
  }
  void DescribeTo(std::ostream* out) const override {
    *out << "a line 'rdmalloc: ...' that ends in the address told before it";
  }
};
#define NAMES_THE_ADDRESS ::testing::Matcher<const std::string&>(new NamesTheAddress)

class MallocCorruption : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(MallocCorruption, a_pointer_to_the_stack_is_reported) {
  EXPECT_DEATH(
      {
        int local = 0;
        free_wrongly(aut::opaque(&local));
      },
      NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, a_pointer_to_a_global_is_reported) {
  static char global[64];
  EXPECT_DEATH(free_wrongly(aut::opaque(&global[16])), NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, a_pointer_to_a_foreign_mapping_is_reported) {
  EXPECT_DEATH(
      {
        aut::free(aut::malloc(100));
        void* map = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        free_wrongly(map);
      },
      NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, addresses_that_are_no_pointers_are_reported) {
  for (uintptr_t wild : {uintptr_t{8}, uintptr_t{0x1000}, uintptr_t{0xDEADBEEF},
                         uintptr_t{0x7FFFFFFFFFF0}, uintptr_t{0xFFFFFFFFFFFFFFF0}}) {
    EXPECT_DEATH(
        {
          aut::free(aut::malloc(100));
          free_wrongly(reinterpret_cast<void*>(wild));
        },
        NAMES_THE_ADDRESS)
        << wild;
  }
}

TEST_F(MallocCorruption, realloc_and_usable_size_of_a_wild_pointer_give_no_memory) {
  EXPECT_DEATH(
      {
        int local = 0;
        fprintf(stderr, "[wrong %p]\n", static_cast<void*>(&local));
        (void)aut::realloc(aut::opaque(&local), 100);
      },
      NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, a_large_block_freed_twice_is_reported) {
  // Small enough not to start the purge thread, whose making may take the freed span.
  for (size_t bytes : {700 * kKiB, 3 * kMiB, 16 * kMiB}) {
    EXPECT_DEATH(
        {
          void* block = aut::malloc(bytes);
          aut::free(block);
          free_wrongly(block);
        },
        NAMES_THE_ADDRESS)
        << bytes;
  }
}

TEST_F(MallocCorruption, the_inside_of_a_large_block_is_reported) {
  EXPECT_DEATH(
      {
        auto* block = static_cast<char*>(aut::malloc(3 * kMiB));
        free_wrongly(block + 2 * kMiB);
      },
      NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, a_small_block_freed_twice_in_a_row_is_reported) {
  for (size_t bytes : {size_t{1}, size_t{48}, size_t{1000}, 20 * kKiB}) {
    EXPECT_DEATH(
        {
          void* block = aut::malloc(bytes);
          aut::free(block);
          free_wrongly(block);
        },
        NAMES_THE_ADDRESS)
        << bytes;
  }
}

TEST_F(MallocCorruption, a_small_block_twice_in_one_flush_is_reported) {
  // The bits of a slab show it when the blocks go back there, at the latest when all are sent
  // there.
  EXPECT_DEATH(std::thread([] {
                 for (int round = 0; round < 100; round++) {
                   std::vector<void*> blocks;
                   for (int i = 0; i < 500; i++) blocks.push_back(aut::malloc(48));
                   for (void* block : blocks) {
                     aut::free(block);
                     aut::free(block);
                   }
                 }
                 aut::purge(0);
               }).join(),
               "rdmalloc: .*0x[0-9a-f]+");
}

// Neighbours are entered run by run; the report is to name the block, not the start of a run. What
// a thread leaves when it ends may wait in the depot first, with others' blocks; a purge sends it
// on to the slabs, whose bits show it.
TEST_F(MallocCorruption, small_blocks_freed_twice_in_a_run_are_reported_by_the_first) {
  EXPECT_DEATH(std::thread([] {
                 std::vector<void*> blocks;
                 aut::purge(0);
                 for (int i = 0; i < 20; i++) blocks.push_back(aut::malloc(48));
                 for (size_t i = 0; i < blocks.size(); i++)
                   if (i != 8 && i != 9) aut::free(blocks[i]);
                 aut::free(blocks[8]);
                 aut::free(blocks[9]);
                 free_wrongly(blocks[10]);
                 for (size_t i = 11; i < 16; i++) aut::free(blocks[i]);
                 aut::purge(0);
               }).join(),
               NAMES_THE_ADDRESS);
}

#if RDMALLOC_CHECKED
TEST_F(MallocCorruption, checked_a_small_block_freed_by_two_threads_is_reported) {
  EXPECT_DEATH(
      {
        void* block = aut::malloc(100);
        std::thread([&] { aut::free(block); }).join();
        free_wrongly(block);
      },
      NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, checked_a_small_block_freed_twice_not_in_a_row_is_reported) {
  EXPECT_DEATH(
      {
        void* block = aut::malloc(100);
        void* other = aut::malloc(100);
        aut::free(block);
        aut::free(other);
        free_wrongly(block);
      },
      NAMES_THE_ADDRESS);
}

TEST_F(MallocCorruption, checked_the_inside_of_a_small_block_is_reported_at_once) {
  for (size_t bytes : {size_t{32}, size_t{100}, size_t{1000}, 20 * kKiB}) {
    EXPECT_DEATH(
        {
          auto* block = static_cast<char*>(aut::malloc(bytes));
          free_wrongly(block + 16);
        },
        NAMES_THE_ADDRESS)
        << bytes;
  }
}
#endif

}  // namespace
