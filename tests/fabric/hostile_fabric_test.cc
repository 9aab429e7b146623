// SPDX-License-Identifier: BSD-3-Clause
//
// Runs hostile_program under several mallocs: rdmalloc must finish, the control must
// hang, in the lock cycle that it is the control for.
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::ChildOptions;
using rdmalloc_test::ChildResult;
using rdmalloc_test::run_child;

ChildResult run_program(const std::vector<std::string>& arguments, const std::string& preload,
                        std::vector<std::string> environment, int limit_ms, std::string* stacks) {
  std::vector<std::string> argv = {HOSTILE_PROGRAM};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  ChildOptions options;
  options.environment = std::move(environment);
  options.environment.push_back(preload.empty() ? "LD_PRELOAD" : "LD_PRELOAD=" + preload);
  options.limit_ms = limit_ms;
  options.at_limit = [stacks](pid_t pid) { *stacks = rdmalloc_test::stacks_of(pid); };
  return run_child(argv, options);
}

size_t counter(const ChildResult& result, const char* name) {
  size_t at = result.output.find(std::string(name) + "=");
  return at == std::string::npos
             ? 0
             : strtoull(result.output.c_str() + at + strlen(name) + 1, nullptr, 10);
}

// One thread's part of gdb's text that holds all of `words`; empty when there is none.
std::string thread_with(const std::string& stacks, const std::vector<std::string>& words) {
  for (size_t at = stacks.find("\nThread "); at != std::string::npos;) {
    size_t next = stacks.find("\nThread ", at + 1);
    std::string one = stacks.substr(at, next == std::string::npos ? next : next - at);
    bool has_all = true;
    for (const std::string& word : words) has_all &= one.find(word) != std::string::npos;
    if (has_all) return one;
    at = next;
  }
  return "";
}

// `./test --full` asks for 10,000.
std::string rounds() {
  const char* told = getenv("TEST_ROUNDS");
  return told != nullptr ? told : "2500";
}

void expect_finishes(const std::vector<std::string>& arguments,
                     const std::vector<std::string>& environment, bool expect_meetings) {
  std::string stacks;
  ChildResult result = run_program(arguments, RDMALLOC_LIBRARY, environment, 300000, &stacks);
  ASSERT_TRUE(result.clean()) << result.describe() << "\n" << stacks;
  printf("%s", result.output.c_str());
  EXPECT_EQ(counter(result, "stale"), 0u);
  // It must have been tried: purges that really came, most of them into the held lock.
  size_t asked = std::stoul(rounds());
  EXPECT_GE(counter(result, "purge_events"), expect_meetings ? asked / 2 : asked / 10)
      << result.output;
  if (expect_meetings) {
    EXPECT_GE(counter(result, "meetings"), asked / 2) << result.output;
  }
}

TEST(HostileFabric, rdmalloc_finishes_with_a_purge_forced_in_each_round) {
  expect_finishes({rounds(), "1"}, {"RDMALLOC_DECAY_MS=0"}, true);
}

TEST(HostileFabric, rdmalloc_finishes_with_four_threads_and_forced_purges) {
  expect_finishes({std::to_string(std::stoul(rounds()) / 4), "4"}, {"RDMALLOC_DECAY_MS=0"}, false);
}

TEST(HostileFabric, rdmalloc_finishes_when_its_own_thread_purges_at_every_chance) {
  expect_finishes({rounds(), "2", "passive"}, {"RDMALLOC_DECAY_MS=0"}, false);
}

TEST(HostileFabric, rdmalloc_finishes_when_a_low_ceiling_forces_the_purges) {
  expect_finishes({rounds(), "2", "passive"}, {"RDMALLOC_DIRTY_MAX=1M"}, false);
}

TEST(HostileFabric, rdmalloc_in_manual_mode_finishes) {
  expect_finishes({rounds(), "1"}, {"RDMALLOC_PURGE=manual"}, true);
}

TEST(HostileFabric, control_a_malloc_that_calls_madvise_hangs_in_its_own_lock) {
  std::string stacks;
  ChildResult result = run_program({"10000", "1"}, MADVISE_MALLOC_LIBRARY, {}, 5000, &stacks);
  ASSERT_TRUE(result.timed_out) << "the control finished, so finishing proves nothing:\n"
                                << result.describe();
  // The lock twice in one stack: register_memory took it, and waits below itself in notify.
  std::string hung = thread_with(
      stacks, {"hostile::notify", "madvise", "purge_inside_malloc", "hostile::register_memory"});
  EXPECT_FALSE(hung.empty()) << "no thread shows the cycle:\n" << stacks;
}

TEST(HostileFabric, control_libc_malloc_finishes) {
  // The fabric is hostile to purging inside malloc, not to everything.
  std::string stacks;
  ChildResult result = run_program({rounds(), "1"}, "", {}, 120000, &stacks);
  EXPECT_TRUE(result.clean()) << result.describe() << "\n" << stacks;
}

}  // namespace
