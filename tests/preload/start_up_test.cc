// SPDX-License-Identifier: BSD-3-Clause
//
// What the preload costs a program that does nothing, as counts: system calls, page faults,
// resident memory. Times would be the machine's.
//
// Seen to fail: with the limits of memory looked up four times; the first also with the arena
// reserved by a constructor; those of code without cmake/order_of_code.ld, or with its three
// mappings in one; the_two_mappings_… with prlimit() in the first (76); the last with
// clock_gettime() called; and what_ends_... with .fini where the
// linker has it.
#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/trace.h"

namespace {

using rdmalloc_test::KernelUse;
using rdmalloc_test::trace_program;

const std::string kPreload = "LD_PRELOAD=" RDMALLOC_LIBRARY;

// The least of some runs: what page cache and address layout add is no part of it.
KernelUse least(const std::vector<std::string>& program,
                const std::vector<std::string>& environment) {
  KernelUse best;
  for (int run = 0; run < 5; run++) {
    KernelUse use = trace_program(program, environment);
    EXPECT_EQ(use.status, 0);
    if (run == 0) best = use;
    best.page_faults = std::min(best.page_faults, use.page_faults);
    best.peak_kib = std::min(best.peak_kib, use.peak_kib);
  }
  return best;
}

// That the preload adds no more than so many system calls, page faults and KiB, and no thread.
void expect_little(const std::vector<std::string>& program, int most_calls, long most_faults,
                   long most_kib) {
  if (getpagesize() != 4096) most_kib = 2048;
  KernelUse without = least(program, {}), with = least(program, {kPreload});
  for (const auto& [number, count] : with.calls)
    if (count != without.calls_of(number))
      printf("call %ld: %d, without the preload %d\n", number, count, without.calls_of(number));
  printf("%d calls, %d without; %ld page faults, %ld without; %ld KiB, %ld without\n",
         with.all_calls(), without.all_calls(), with.page_faults, without.page_faults,
         with.peak_kib, without.peak_kib);
  EXPECT_LE(with.all_calls(), without.all_calls() + most_calls);
  EXPECT_LE(with.page_faults, without.page_faults + most_faults);
  EXPECT_LE(with.peak_kib, without.peak_kib + most_kib);
  EXPECT_EQ(with.calls_of(SYS_clone), 0) << "a thread for a program that has none";
#if defined(SYS_clone3)
  EXPECT_EQ(with.calls_of(SYS_clone3), 0) << "a thread for a program that has none";
#endif
}

TEST(StartUp, a_program_that_allocates_nothing_gets_no_arena) {
  expect_little({"/bin/true"}, 13, 40, 256);
}

TEST(StartUp, a_program_that_allocates_little_pays_little) {
  expect_little({"/bin/cat", "/dev/null"}, 29, 70, 512);
}

// What a program prints to its standard output, run by sh with the library.
std::string output_of(const std::string& program) {
  FILE* output = popen(("exec env " + kPreload + " " + program).c_str(), "r");
  EXPECT_NE(output, nullptr);
  std::string text;
  char line[4096];
  while (fgets(line, sizeof line, output) != nullptr) text += line;
  EXPECT_EQ(pclose(output), 0);
  return text;
}

// Resident KiB of the library's code and constants in a program that prints its own mappings.
long resident_code_kib() {
  std::istringstream maps(output_of("cat /proc/self/smaps"));
  bool is_code = false;
  long kib = 0, rss = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-xp ") != std::string::npos)
      is_code = line.find("librdmalloc.so") != std::string::npos;
    else if (is_code && sscanf(line.c_str(), "Rss: %ld kB", &rss) == 1)
      kib += rss;
    else if (line.rfind("VmFlags", 0) == 0)
      is_code = false;
  }
  return kib;
}

// The kernel maps 64 KiB of a file around each page fault, within a mapping: what every program
// runs has to lie together, and what few run apart. 68 KiB seen; in one mapping 76 to 136, by where
// the loader put it; 172 where only what few run lies apart, and 216 in the order of the files.
TEST(StartUp, code_that_few_programs_run_is_not_resident) {
#if RDMALLOC_LINKER_INSERTS
  if (getpagesize() != 4096) GTEST_SKIP() << "SKIP: the figure is of pages of 4 KiB";
  long least = resident_code_kib();
  for (int run = 1; run < 20; run++) least = std::min(least, resident_code_kib());
  printf("%ld KiB of code\n", least);
  EXPECT_GT(least, 0);
  EXPECT_LE(least, 92);
#else
  GTEST_SKIP() << "SKIP: this linker has no INSERT: code lies in the order of the files";
#endif
}

// What the figures above and below come from. Where one has a page more, how much of it is resident
// goes by where the loader puts it: two runs of three saw nothing.
TEST(StartUp, the_two_mappings_that_most_run_hold_no_more_than_they_did) {
#if RDMALLOC_LINKER_INSERTS
  if (getpagesize() != 4096) GTEST_SKIP() << "SKIP: the figure is of pages of 4 KiB";
  std::istringstream maps(output_of("cat /proc/self/maps"));
  std::vector<unsigned long> kib;
  for (std::string line; std::getline(maps, line);) {
    unsigned long low = 0, high = 0;
    if (line.find("-xp ") != std::string::npos &&
        line.find("librdmalloc.so") != std::string::npos &&
        sscanf(line.c_str(), "%lx-%lx", &low, &high) == 2)
      kib.push_back((high - low) / 1024);
  }
  ASSERT_EQ(kib.size(), 3u);
  EXPECT_LE(kib[0], 72u);
#if defined(__clang__)
  EXPECT_LE(kib[1], 80u);
#else
  EXPECT_LE(kib[1], 76u);
#endif
#else
  GTEST_SKIP() << "SKIP: this linker has no INSERT: code lies in the order of the files";
#endif
}

// The same of a program with threads and blocks to 2 MiB: 148 KiB seen, 212 where the functions of
// page_heap_neighbours.cc lie with the rest. And that, unless other code beside it runs, the part
// of libc where it reads the clock is not, another 64 KiB.
TEST(StartUp, threads_run_what_lies_together) {
#if RDMALLOC_LINKER_INSERTS
  if (getpagesize() != 4096) GTEST_SKIP() << "SKIP: the figure is of pages of 4 KiB";
  long least = 0;
  bool has_run_without_clock = false;
  for (int run = 0; run < 20; run++) {
    long kib = 0;
    int is_clock = 1;
    ASSERT_EQ(sscanf(output_of(RDMALLOC_RESIDENT_CODE).c_str(), "%ld %d", &kib, &is_clock), 2);
    if (run == 0 || kib < least) least = kib;
    has_run_without_clock |= is_clock == 0;
  }
  printf("%ld KiB of code\n", least);
  EXPECT_GT(least, 0);
  EXPECT_LE(least, 148);
  if (getauxval(AT_SYSINFO_EHDR) != 0) {
    EXPECT_TRUE(has_run_without_clock);
  }
#else
  GTEST_SKIP() << "SKIP: this linker has no INSERT: code lies in the order of the files";
#endif
}

// What the library's dynamic section says, 0 where it says nothing.
std::uint64_t dynamic_value(std::int64_t tag) {
  int file = open(RDMALLOC_LIBRARY, O_RDONLY | O_CLOEXEC);
  struct stat about = {};
  EXPECT_EQ(fstat(file, &about), 0);
  auto bytes = static_cast<std::size_t>(about.st_size);
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  close(file);
  const char* base = static_cast<const char*>(mapped);
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(base);
  const auto* segment = reinterpret_cast<const Elf64_Phdr*>(base + header->e_phoff);
  std::uint64_t value = 0;
  for (unsigned i = 0; i < header->e_phnum; i++, segment++) {
    if (segment->p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const Elf64_Dyn*>(base + segment->p_offset);
    for (; entry->d_tag != DT_NULL; entry++)
      if (entry->d_tag == tag) value = entry->d_un.d_val;
  }
  munmap(mapped, bytes);
  return value;
}

// The linker puts .fini behind all code: the instructions that end every program were alone in
// their 64 KiB, which each process had at its peak.
TEST(StartUp, what_ends_a_program_lies_beside_what_starts_it) {
#if RDMALLOC_LINKER_INSERTS
  std::uint64_t begins = dynamic_value(DT_INIT), ends = dynamic_value(DT_FINI);
  EXPECT_NE(begins, 0u);
  EXPECT_LT(ends - begins, 4096u);
#else
  GTEST_SKIP() << "SKIP: this linker has no INSERT: code lies in the order of the files";
#endif
}

}  // namespace
