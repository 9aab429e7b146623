// Seen to fail: with no write to the pages, and with the writes in this process.
#include "bench/support/backed_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{96} << 20;

std::size_t peak_bytes(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

TEST(BackedMemory, another_process_has_written_all_of_it) {
  ASSERT_LT(peak_bytes(RUSAGE_CHILDREN), kBytes);
  ASSERT_EQ(back_free_memory(kBytes), kBytes);
  EXPECT_GE(peak_bytes(RUSAGE_CHILDREN), kBytes);
  EXPECT_LT(peak_bytes(RUSAGE_SELF), kBytes);
}

TEST(BackedMemory, none_is_written_for_nothing) {
  EXPECT_EQ(back_free_memory(0), 0);
}

}  // namespace
}  // namespace rdmalloc::bench
