// What a pattern tells of its operations is what it did: a malloc for each, before begin() and
// after, or the time of the whole process is divided by another number than its work's. Linked with
// --wrap, so that the patterns' calls are counted and no other's.
//
// Seen to fail: with as many first blocks as are live counted for `hand-over`, `pool` and
// `come-and-go`, which have none or others.
#include "bench/patterns/patterns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace {

std::atomic<std::size_t> blocks_asked_for{0};

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): names of the linker's
extern "C" void* __real_malloc(std::size_t bytes);

extern "C" void* __wrap_malloc(std::size_t bytes) {
  blocks_asked_for.fetch_add(1, std::memory_order_relaxed);
  return __real_malloc(bytes);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace rdmalloc::bench {
namespace {

// Those that ask by malloc.
constexpr const char* kNames[] = {"replace",   "bursts", "filled", "come-and-go",
                                  "hand-over", "larson", "pool"};

class Patterns : public testing::TestWithParam<const char*> {};

const Pattern& pattern_of(const std::string& name) {
  for (const auto* patterns : {&own_patterns(), &shared_patterns()})
    for (const Pattern& pattern : *patterns)
      if (name == pattern.name) return pattern;
  throw std::invalid_argument(name);
}

TEST_P(Patterns, operations_told_are_the_blocks_asked_for) {
  // No multiples of a batch, a job, a round or a life.
  Shape shape;
  shape.threads = 3;
  shape.live = 77;
  shape.warm_up = 1001;
  shape.operations = 2003;
  testing::internal::CaptureStdout();
  blocks_asked_for = 0;
  Team team(shape);
  pattern_of(GetParam()).run(team);
  const std::size_t blocks = blocks_asked_for;
  const std::string told = testing::internal::GetCapturedStdout();
  std::size_t measured = 0, before = 0;
  ASSERT_EQ(std::sscanf(told.c_str(), "{\"operations\":%zu,\"operations_before\":%zu,", &measured,
                        &before),
            2)
      << told;
  EXPECT_EQ(before + measured, blocks) << told;
}

INSTANTIATE_TEST_SUITE_P(each, Patterns, testing::ValuesIn(kNames), [](const auto& about) {
  std::string name = about.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace rdmalloc::bench
