// Where the records of registrations lie (registration.h, pool.h). Each test was seen to fail; the
// comment at each says how.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <set>
#include <vector>

#include "regcache/core/pool.h"
#include "regcache/core/registration.h"
#include "tests/unit/regcache/fixture.h"

namespace {

using rdmalloc::regcache::Pool;
using rdmalloc::regcache::PoolMemory;
using rdmalloc::regcache::RecordNumber;
using rdmalloc::regcache::RecordWindow;
using rdmalloc::regcache::Registration;
using rdmalloc::regcache::RegistrationPlaces;

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = Registration::kRestDistance;
constexpr std::size_t kSpread = 7680;
constexpr std::size_t kMany = 40000;  // six chunks and a part of the seventh

class Records : public testing::Test {
 protected:
  Registration* take() { return pool_.take(memory_); }
  void give(Registration* record) { pool_.give(record); }
  std::vector<Registration*> take_all(std::size_t count) {
    std::vector<Registration*> taken;
    for (std::size_t i = 0; i < count; ++i) taken.push_back(take());
    return taken;
  }

  const RecordWindow& window() const { return memory_.window; }

 private:
  PoolMemory memory_;
  Pool<Registration, RegistrationPlaces> pool_;
};

std::uintptr_t line_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) / kLine;
}

// Fails, or crashes, when after() goes on from a run's first page into its second.
TEST_F(Records, no_line_is_in_two_records) {
  std::set<std::uintptr_t> lines;
  for (std::size_t i = 0; i < kMany; ++i) {
    Registration* record = take();
    ASSERT_NE(record, nullptr);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(record) % kLine, 0U);
    // The memory is there, in both pages.
    record->stamp = 1;
    record->rest().listed_stamp = 1;
    ASSERT_TRUE(lines.insert(line_of(record)).second) << lines.size();
    ASSERT_TRUE(lines.insert(line_of(&record->rest())).second) << lines.size();
  }
}

// Two threads that hit two of these write into no pair of lines together. Fails when the records of
// the first chunks are packed too (kSpreadChunks 0 or 3).
TEST_F(Records, no_two_of_the_first_begin_in_one_pair_of_lines) {
  std::set<std::uintptr_t> pairs;
  for (Registration* record : take_all(kSpread))
    ASSERT_TRUE(pairs.insert(line_of(record) / 2).second) << pairs.size();
}

// Fails when all records are spread.
TEST_F(Records, lines_of_hits_of_many_records_fill_their_pages) {
  take_all(kSpread);
  std::set<std::uintptr_t> pages;
  for (Registration* record : take_all(kMany - kSpread))
    pages.insert(reinterpret_cast<std::uintptr_t>(record) / kPage);
  EXPECT_LE(pages.size(), (kMany - kSpread) * kLine / kPage + 1);
}

// Fails when the order of a run's two pages is the same everywhere.
TEST_F(Records, lines_of_hits_of_many_records_use_all_sets_of_a_cache) {
  take_all(kSpread);
  std::size_t in_second = 0;
  for (Registration* record : take_all(kMany - kSpread))
    in_second += (reinterpret_cast<std::uintptr_t>(record) / kPage) % 2;
  EXPECT_GT(in_second, (kMany - kSpread) / 4);
  EXPECT_LT(in_second, (kMany - kSpread) * 3 / 4);
}

// Fails when give() forgets what was on the list, and when it does not put them behind each other.
TEST_F(Records, records_given_back_rest_and_return_earliest_first) {
  std::vector<Registration*> first = take_all(kMany);
  for (Registration* record : first) give(record);
  std::vector<Registration*> second = take_all(kMany - RegistrationPlaces::resting);
  first.resize(second.size());
  EXPECT_EQ(first, second);
  EXPECT_EQ(std::set<Registration*>(first.begin(), first.end()).count(take()), 0u) << "a new one";
}

// Fails when numbers count records' runs of 128 bytes, or from the window's begin.
TEST_F(Records, a_number_other_than_0_leads_to_its_record) {
  std::set<RecordNumber> numbers;
  for (Registration* record : take_all(kMany)) {
    auto address = reinterpret_cast<std::uintptr_t>(record);
    RecordNumber number = rdmalloc::regcache::record_number(window().numbered_from(), address);
    ASSERT_NE(number, 0U);
    ASSERT_TRUE(numbers.insert(number).second);
    ASSERT_EQ(rdmalloc::regcache::record_at(window().numbered_from(), number), address);
  }
}

// Fails, or crashes, when take() doesn't look at the window's end.
TEST(RecordWindows, end_with_what_is_left) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  static_assert(RecordWindow::kMostBytes == 4 * kGiB);
  RecordWindow window;
  EXPECT_EQ(window.numbered_from(), 0U);
  std::uintptr_t base = 0;
  std::size_t length = 65536;
  ASSERT_TRUE(window.take(&length, &base));
  EXPECT_EQ(length, 65536U);
  EXPECT_EQ(window.numbered_from(), base - kLine);
  const std::uintptr_t first = base;
  length = 3 * kGiB;
  ASSERT_TRUE(window.take(&length, &base));
  EXPECT_EQ(length, 3 * kGiB);
  // On huge pages, past the one that the first has begun.
  EXPECT_EQ(base - first, std::size_t{2} << 20);
  ASSERT_TRUE(window.take(&length, &base));
  EXPECT_EQ(length, kGiB - (std::size_t{2} << 20));
  // The last line has a number.
  const std::uintptr_t last = base + length - kLine;
  EXPECT_EQ(
      rdmalloc::regcache::record_at(
          window.numbered_from(), rdmalloc::regcache::record_number(window.numbered_from(), last)),
      last);
  length = 65536;
  EXPECT_FALSE(window.take(&length, &base));
}

// Fails when reserve() doesn't look at the limit, or gives up where a sixteenth is too little.
TEST(RecordWindows, take_a_sixteenth_of_limited_addresses) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "SKIP: a sanitizer's shadow is beyond any limit of addresses";
#endif
  for (const std::size_t left_mib : {std::size_t{8}, std::size_t{300}}) {
    const pid_t child = fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      std::size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlim_t limit = pages * kPage + (left_mib << 20);
      const rlimit limits = {limit, limit};
      if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(1);
      RecordWindow window;
      std::uintptr_t base = 0;
      std::size_t taken = 0, length = 65536;
      for (; window.take(&length, &base); length = 65536) taken += length;
      _exit(taken == (left_mib == 8 ? std::size_t{1} : 16) << 20 ? 0 : 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << left_mib;
  }
}

using KeptRecords = Regcache;

// Fails when make() keeps the record: of 33 million each get that is tried again would take one.
TEST_F(KeptRecords, a_get_without_room_keeps_no_record) {
  RecordsAtOnce records_at_once;
  rdmalloc_domain_attr only_one = {};
  only_one.max_count = 1;
  StubDomain full(fabric, only_one), other(fabric);
  rdmalloc_reg* held = full.get(span(10, 1), 8);
  auto next_record = [&] {
    rdmalloc_reg* reg = other.get(spans[0], 8);
    rdmalloc_reg_put(reg);
    EXPECT_EQ(rdmalloc_domain_flush(other.handle), 1);
    return reg;
  };
  rdmalloc_reg* next = next_record();
  EXPECT_EQ(full.get(span(20, 1), 8), nullptr);
  EXPECT_EQ(next_record(), next);
  rdmalloc_reg_put(held);
}

}  // namespace
