// SPDX-License-Identifier: BSD-3-Clause
//
// Where buffers come to lie: at the place that a buffer left, whatever is allocated in between, so
// that a cache of registrations, which knows addresses, knows the next one too.
// RDMALLOC_PURGE=manual, so that nothing is given back meanwhile.
//
// Seen to fail: with buffers leaving dirty spans (kFreeDirty in left_by), and with retained
// neighbours always joined (are_one); small_blocks_take_… with is_left_alone() always true;
// slabs_leave_… with no place and with all places left alone, slabs_leave_the_16_… with 8 of them
// and with 32, slabs_take_short_… without take_backed(), buffers_and_… without it in
// take_for_buffer(), and without it in take_with_room(); slabs_find_… with a kScanLimit of 256;
// pieces_of_… with no piece of a place on the quick list, a_block_of_another_length_… with all runs
// released, neighbours_are_one_… and slabs_… with a list that stays; slabs_leave_… with places on
// the list that count for none, slabs_find_… without quick_release_place(); of_equal_runs_… with
// the one freed last; a_buffer_leaves_… with places up to 16 times as long; a_place_a_little_… with
// each place cut (kWholeParts of 100), and with those above 4 MiB taken whole; buffers_of_all_…
// with each of its own length.
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/invariants/page_model.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr size_t kSizes[] = {258048, 1 * kMiB, 2 * kMiB, 16 * kMiB, 64 * kMiB};

char* buffer(size_t bytes) {
  auto* block = static_cast<char*>(rdmalloc_calloc(1, bytes));  // no span that a thread caches
  for (size_t at = 0; at < bytes; at += 4096) block[at] = 1;
  return block;
}
// The address of one that lived a moment.
char* passing_buffer(size_t bytes) {
  char* block = buffer(bytes);
  rdmalloc_free(block);
  return block;
}

// Blocks of up to 64 KiB, 16 MiB of them, freed at its end.
class SmallBlocks {
 public:
  SmallBlocks() {
    rdmalloc_test::Random random(7);
    for (size_t used = 0; used < 16 * kMiB;) {
      size_t bytes = random.size_between(16, 64 * kKiB);
      blocks_.push_back(static_cast<char*>(rdmalloc_malloc(bytes)));
      *blocks_.back() = 1;
      used += bytes;
    }
  }
  ~SmallBlocks() {
    for (char* block : blocks_) rdmalloc_free(block);
  }
  bool any_in(const char* begin, size_t bytes) const {
    for (const char* block : blocks_)
      if (block >= begin && block < begin + bytes) return true;
    return false;
  }

 private:
  std::vector<char*> blocks_;
};

class Places : public ::testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_test::set("purge.decay_ms", 3600000);
    ASSERT_EQ(rdmalloc_init(), 0);
    rdmalloc_purge(0);  // nothing of the test before
  }
};

TEST_F(Places, a_buffer_comes_back_whatever_small_blocks_come_and_stay) {
  for (size_t bytes : kSizes) {
    char* place = passing_buffer(bytes);
    for (int round = 0; round < 4; round++) {
      SmallBlocks blocks;
      EXPECT_FALSE(blocks.any_in(place, bytes)) << bytes;
      EXPECT_EQ(passing_buffer(bytes), place) << bytes << " B, in round " << round;
    }
    EXPECT_EQ(passing_buffer(bytes), place) << bytes << " B, with the small blocks gone";
  }
}

// Also at a multiple of more than the arena itself is aligned to. Seen to fail where a place had to
// hold what may have to be passed over as well: each lay on new pages.
TEST_F(Places, a_buffer_at_a_far_multiple_comes_back) {
  for (size_t alignment : {4 * kMiB, 64 * kMiB}) {
    for (size_t bytes : {kMiB, 8 * kMiB}) {
      char* first = nullptr;
      for (int round = 0; round < 4; round++) {
        auto* block = static_cast<char*>(rdmalloc_aligned_alloc(alignment, bytes));
        if (round == 0) first = block;
        EXPECT_EQ(block, first) << alignment << ' ' << bytes << ' ' << round;
        memset(block, 1, bytes);
        rdmalloc_free(block);
      }
    }
  }
}

TEST_F(Places, a_shorter_buffer_lies_where_a_longer_one_lay) {
  char* place = passing_buffer(16 * kMiB);
  for (size_t bytes : {12 * kMiB + 1, 8 * kMiB, 258048ul, 5 * kMiB})
    EXPECT_EQ(passing_buffer(bytes), place) << bytes;
  EXPECT_EQ(passing_buffer(16 * kMiB), place);
}

// Arrays of 240 KB and 4 MB, as mpi4py has them: the long ones are registered whole.
TEST_F(Places, a_buffer_leaves_a_place_more_than_8_times_as_long_whole) {
  constexpr size_t kShort = 240'000, kMiddle = 1'900'000, kLong = 4'000'000;
  char* middle = buffer(kMiddle);
  char* stays[2] = {buffer(kShort), nullptr};
  char* longest = buffer(kLong);
  stays[1] = buffer(kShort);
  rdmalloc_free(middle);
  rdmalloc_free(longest);
  char* block = buffer(kShort);
  EXPECT_EQ(block, middle);
  EXPECT_EQ(passing_buffer(kLong), longest);
  rdmalloc_free(block);
  for (char* stay : stays) rdmalloc_free(stay);
}

// Up to an eighth longer, and of up to 4 MiB; then it is the longer buffer's again.
TEST_F(Places, a_place_a_little_longer_is_taken_whole) {
  struct Lengths {
    size_t place, buffer, taken;  // slices
  };
  constexpr size_t kSlice = 64 * kKiB;
  for (Lengths of : {Lengths{32, 29, 32}, {32, 28, 28}, {9, 8, 9}, {8, 7, 7}, {80, 79, 79}}) {
    char* place = buffer(of.place * kSlice);
    char* stays = buffer(kSlice);
    rdmalloc_free(place);
    char* block = buffer(of.buffer * kSlice);
    EXPECT_EQ(block, place) << of.place << ' ' << of.buffer;
    EXPECT_EQ(rdmalloc_malloc_usable_size(block), of.taken * kSlice)
        << of.place << ' ' << of.buffer;
    rdmalloc_free(block);
    EXPECT_EQ(passing_buffer(of.place * kSlice), place);
    rdmalloc_free(stays);
    rdmalloc_purge(0);
  }
}

// Of 1 to 4 MiB each is cut in one of eight lengths to a doubling (slices_to_cut): 467 places,
// seen.
TEST_F(Places, buffers_of_all_sizes_come_back_to_few_places) {
  constexpr size_t kLive = 30, kRounds = 20000, kMost = 700;
  rdmalloc_test::Random random(10);
  std::set<char*> places;
  std::vector<char*> live(kLive, nullptr);
  for (size_t i = 0; i < kRounds; i++) {
    char*& block = live[random.below(kLive)];
    rdmalloc_free(block);
    block = static_cast<char*>(rdmalloc_malloc(random.size_between(kMiB, 4 * kMiB)));
    places.insert(block);
  }
  for (char* block : live) rdmalloc_free(block);
  printf("%zu places\n", places.size());
  EXPECT_LE(places.size(), kMost);
}

TEST_F(Places, a_longer_buffer_begins_where_the_longest_so_far_began) {
  char* place = passing_buffer(4 * kMiB + 70000);
  for (size_t bytes : {6 * kMiB, 6 * kMiB + 70000, 12 * kMiB, 24 * kMiB, 48 * kMiB})
    EXPECT_EQ(passing_buffer(bytes), place) << bytes;
  EXPECT_EQ(passing_buffer(4 * kMiB + 70000), place);
}

// The last freed of one length comes first, whatever place it was cut from. Joined with the rest
// that is free behind it, the next one would begin where the first one lay.
TEST_F(Places, pieces_of_a_place_are_kept_for_their_length) {
  constexpr size_t kBytes = 256 * kKiB;
  passing_buffer(16 * kMiB);
  std::vector<char*> pieces;
  for (int i = 0; i < 8; i++) pieces.push_back(buffer(kBytes));
  for (int i = 1; i < 8; i++) ASSERT_EQ(pieces[i], pieces[i - 1] + kBytes);
  for (char* piece : pieces) rdmalloc_free(piece);
  for (size_t i = pieces.size(); i-- != 0;) EXPECT_EQ(buffer(kBytes), pieces[i]) << i;
  for (char* piece : pieces) rdmalloc_free(piece);
}

// One block of another length that nothing free fits has few of the runs that are kept joined, and
// leaves the others to the next blocks of their length.
TEST_F(Places, a_block_of_another_length_leaves_the_runs_freed_last) {
  constexpr size_t kBytes = 192 * kKiB, kRuns = 100, kLeft = 60;
  passing_buffer(kRuns * kBytes);
  std::vector<char*> runs;  // of its place: joined if they are free
  for (size_t i = 0; i < kRuns; i++) runs.push_back(buffer(kBytes));
  for (char* run : runs) rdmalloc_free(run);
  char* other = buffer(7 * 64 * kKiB);
  for (size_t i = 0; i < kLeft; i++) EXPECT_EQ(buffer(kBytes), runs[kRuns - 1 - i]) << i;
  for (size_t i = 0; i < kLeft; i++) rdmalloc_free(runs[kRuns - 1 - i]);
  rdmalloc_free(other);
}

TEST_F(Places, neighbours_keep_their_places) {
  char* one = buffer(4 * kMiB);
  char* other = buffer(3 * kMiB);
  ASSERT_EQ(other, one + 4 * kMiB) << "the test wants neighbours";
  for (int round = 0; round < 3; round++) {
    char *long_place = one, *short_place = other;
    rdmalloc_free(one);
    rdmalloc_free(other);
    other = buffer(3 * kMiB);  // first: it would take the front of a joined span
    one = buffer(4 * kMiB);
    EXPECT_EQ(other, short_place);
    EXPECT_EQ(one, long_place);
  }
  rdmalloc_free(one);
  rdmalloc_free(other);
}

TEST_F(Places, neighbours_are_one_where_there_is_no_other_room) {
  std::vector<char*> all;
  for (int i = 0; i < 32; i++) all.push_back(buffer(4 * kMiB));
  char* stays = buffer(kMiB);  // nothing grows beyond it
  uint64_t mapped = rdmalloc_test::counter("stats.mapped_bytes");
  for (char* block : all) rdmalloc_free(block);
  char* whole = buffer(100 * kMiB);
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped)
      << "new memory was taken beside 128 MiB of free neighbours";
  rdmalloc_free(whole);
  rdmalloc_free(stays);
}

TEST_F(Places, small_blocks_take_the_place_once_it_is_old) {
  rdmalloc_test::set("purge.decay_ms", 50);
  char* place = passing_buffer(16 * kMiB);
  usleep(200000);
  SmallBlocks blocks;
  EXPECT_TRUE(blocks.any_in(place, 16 * kMiB));
}

// Blocks of 1 to 8 KiB, 8 MiB of them, whose slabs are of 512 KiB.
std::vector<char*> slabs_of_8_MiB() {
  rdmalloc_test::Random random(8);
  std::vector<char*> blocks;
  for (size_t used = 0; used < 8 * kMiB; used += 4608)
    blocks.push_back(static_cast<char*>(rdmalloc_malloc(random.size_between(1025, 8192))));
  return blocks;
}

// Whether one of the blocks lies in the place.
bool is_cut(const char* place, size_t bytes, const std::vector<char*>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(),
                     [=](char* block) { return block >= place && block < place + bytes; });
}

TEST_F(Places, slabs_leave_the_32_latest_of_many_places_alone) {
  constexpr size_t kPlaces = 32, kBytes = 704 * kKiB;
  std::vector<char*> places;
  for (size_t i = 0; i < 3 * kPlaces; i++) places.push_back(buffer(kBytes));
  char* stays = buffer(kMiB);
  uint64_t mapped = rdmalloc_test::counter("stats.mapped_bytes");
  for (char* place : places) rdmalloc_free(place);
  std::vector<char*> blocks = slabs_of_8_MiB();
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped) << "new memory was taken";
  for (size_t i = 2 * kPlaces; i < places.size(); i++)
    EXPECT_FALSE(is_cut(places[i], kBytes, blocks)) << i;
  for (char* block : blocks) rdmalloc_free(block);
  rdmalloc_free(stays);
}

// 64 places of 256 KiB, of which slabs of 512 KiB fit in the 24 latest only, which are side by
// side.
TEST_F(Places, slabs_leave_the_16_latest_of_short_places_alone) {
  constexpr size_t kApart = 40, kTogether = 24, kLatest = 16, kBytes = 256 * kKiB;
  std::vector<char*> apart, between, together;
  for (size_t i = 0; i < kApart; i++) {
    apart.push_back(buffer(kBytes));
    between.push_back(buffer(kBytes));
  }
  for (size_t i = 0; i < kTogether; i++) together.push_back(buffer(kBytes));
  between.push_back(buffer(kMiB));
  for (char* place : apart) rdmalloc_free(place);
  for (char* place : together) rdmalloc_free(place);
  std::vector<char*> blocks = slabs_of_8_MiB();
  size_t first_cut = 0;
  while (first_cut < kTogether && !is_cut(together[first_cut], kBytes, blocks)) first_cut++;
  EXPECT_LT(first_cut, kTogether - kLatest) << "none of the others was used";
  for (size_t i = kTogether - kLatest; i < kTogether; i++)
    EXPECT_FALSE(is_cut(together[i], kBytes, blocks)) << i;
  for (const auto& all : {blocks, between})
    for (char* block : all) rdmalloc_free(block);
}

// What grew leaves no place.
TEST_F(Places, of_equal_runs_that_are_no_place_the_lowest_is_taken) {
  constexpr size_t kBytes = kMiB;
  std::vector<char*> grown, stay;
  for (int i = 0; i < 4; i++) {
    grown.push_back(static_cast<char*>(rdmalloc_realloc(buffer(300 * kKiB), kBytes)));
    stay.push_back(buffer(200 * kKiB));
  }
  char* lowest = *std::min_element(grown.begin(), grown.end());
  size_t usable = rdmalloc_malloc_usable_size(lowest);
  for (char* block : grown) ASSERT_EQ(rdmalloc_malloc_usable_size(block), usable);
  std::sort(grown.begin(), grown.end());
  for (char* block : grown) rdmalloc_free(block);
  for (char*& block : grown) block = buffer(usable);
  EXPECT_EQ(grown[0], lowest);
  EXPECT_TRUE(std::is_sorted(grown.begin(), grown.end()));
  for (char* block : grown) rdmalloc_free(block);
  for (char* block : stay) rdmalloc_free(block);
}

// 200 blocks side by side, every second of which has grown and leaves no place, but what is dirty.
std::vector<char*> short_blocks_of_both_families() {
  std::vector<char*> all;
  for (int i = 0; i < 200; i++) {
    all.push_back(buffer(192 * kKiB));
    if (i % 2 == 0) all.back() = static_cast<char*>(rdmalloc_realloc(all.back(), 256 * kKiB));
  }
  return all;
}

TEST_F(Places, slabs_take_short_neighbours_of_both_families) {
  std::vector<char*> all = short_blocks_of_both_families();
  char* stays = buffer(kMiB);
  uint64_t mapped = rdmalloc_test::counter("stats.mapped_bytes");
  for (char* block : all) rdmalloc_free(block);
  std::vector<char*> blocks = slabs_of_8_MiB();
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped) << "new memory was taken";
  for (char* block : blocks) rdmalloc_free(block);
  rdmalloc_free(stays);
}

TEST_F(Places, buffers_and_what_grows_take_both_families) {
  std::vector<char*> all = short_blocks_of_both_families();
  std::vector<char*> grown;
  for (int i = 0; i < 8; i++) grown.push_back(buffer(192 * kKiB));
  char* stays = buffer(kMiB);
  uint64_t mapped = rdmalloc_test::counter("stats.mapped_bytes");
  for (char* block : all) rdmalloc_free(block);
  std::vector<char*> buffers;
  for (int i = 0; i < 8; i++) buffers.push_back(buffer(kMiB));
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped) << "new memory for buffers";
  for (char*& block : grown) block = static_cast<char*>(rdmalloc_realloc(block, kMiB));
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped) << "new memory to grow";
  for (char* block : buffers) rdmalloc_free(block);
  for (char* block : grown) rdmalloc_free(block);
  rdmalloc_free(stays);
}

// Long since freed, and of no use: a buffer lies behind each.
TEST_F(Places, slabs_find_room_behind_300_older_places_that_are_short) {
  constexpr size_t kOlder = 300, kPlaces = 32;
  std::vector<char*> shorts, between, places;
  for (size_t i = 0; i < kOlder; i++) {
    shorts.push_back(buffer(192 * kKiB));
    between.push_back(buffer(192 * kKiB));
  }
  for (size_t i = 0; i < 3 * kPlaces; i++) places.push_back(buffer(704 * kKiB));
  char* stays = buffer(kMiB);
  uint64_t mapped = rdmalloc_test::counter("stats.mapped_bytes");
  for (char* block : shorts) rdmalloc_free(block);
  for (char* place : places) rdmalloc_free(place);
  std::vector<char*> blocks = slabs_of_8_MiB();
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped) << "new memory was taken";
  for (char* block : blocks) rdmalloc_free(block);
  for (char* block : between) rdmalloc_free(block);
  rdmalloc_free(stays);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
