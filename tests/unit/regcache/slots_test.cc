// Slots and uncounted keys of registrations whose blocks are free. Each test was seen to fail; the
// comment at each says how.
#include <atomic>
#include <utility>
#include <vector>

#include "regcache/core/domain.h"
#include "regcache/core/drop.h"
#include "regcache/core/slices.h"
#include "regcache/core/stripes.h"
#include "tests/unit/regcache/fixture.h"

namespace {

using namespace rdmalloc::regcache;

class Slots : public Regcache {
 protected:
  static Domain& inside(const StubDomain& domain) { return *domain_of(domain.handle); }
  static RecordNumber number_in(const StubDomain& domain, const Slot* table, const char* address) {
    std::uintptr_t offset =
        reinterpret_cast<std::uintptr_t>(address) - inside(domain).head.arena_base;
    return table[offset >> RDMALLOC_SLICE_SHIFT].load();
  }
  static rdmalloc_key key_of(const StubDomain& domain, const char* block) {
    rdmalloc_key key = {};
    EXPECT_EQ(rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
    return key;
  }
};

// Seen to fail with each of the two lines of withdraw() that empty slots left out.
TEST_F(Slots, of_what_has_ended_are_empty) {
  StubDomain domain(fabric);
  char* block = span(10, 2);
  domain.touch(block, 2 * kSlice);
  key_of(domain, block);
  EXPECT_NE(number_in(domain, inside(domain).counted, block + kSlice), 0u);
  EXPECT_NE(number_in(domain, inside(domain).sticky, block), 0u);
  EXPECT_EQ(rdmalloc_invalidate(domain.handle, block, 8, nullptr, nullptr), 1);
  for (const char* at : {block, block + kSlice}) {
    EXPECT_EQ(number_in(domain, inside(domain).counted, at), 0u);
    EXPECT_EQ(number_in(domain, inside(domain).sticky, at), 0u);
  }
}

// Seen to fail where unpublish() empties the slots of another registration too.
TEST_F(Slots, taken_over_by_another_stay_filled) {
  StubDomain domain(fabric);
  char* first = span(10, 4);
  domain.touch(first, 4 * kSlice);
  free_span(first);
  char* second = span(12, 4);
  domain.touch(second, 4 * kSlice);
  RecordNumber number = number_in(domain, inside(domain).counted, second);
  EXPECT_NE(number, number_in(domain, inside(domain).counted, first));
  EXPECT_EQ(fake::purge(10, 2), 0);
  EXPECT_EQ(fabric.live(), 1u);
  EXPECT_EQ(number_in(domain, inside(domain).counted, second), number);
}

// A thread takes a block, and finds its key in the slot, between the two looks at whether any lives
// there. Seen to fail without the second look, and where the slots stay empty after it.
TEST_F(Slots, I5_a_block_taken_between_two_looks_keeps_its_key) {
  StubDomain domain(fabric);
  char* block = span(10, 1);
  const std::uint64_t generation = key_of(domain, block).generation;
  free_span(block);
  bool is_taken = false;
  fake::set_idle_hook([&] {
    if (!std::exchange(is_taken, true)) block = span(10, 1);
  });
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 0);
  fake::set_idle_hook(nullptr);
  EXPECT_TRUE(is_taken);
  EXPECT_EQ(domain.counters().sticky_count, 1u);
  EXPECT_NE(number_in(domain, inside(domain).sticky, block), 0u);
  EXPECT_EQ(key_of(domain, block).generation, generation);
  EXPECT_EQ(fabric.calls, 1u);
}

// One in each stripe, and one across two. Seen to fail with a turn that leaves the last stripe out.
TEST_F(Slots, a_flush_ends_the_keys_of_all_stripes) {
  StubDomain domain(fabric);
  constexpr std::size_t kSegment = 64;  // slices
  std::vector<char*> blocks = {span(kSegment * 40, kSegment + 1)};
  for (std::size_t i = 0; i < kStripes; ++i) blocks.push_back(span(kSegment * i + 8, 2));
  for (char* block : blocks) key_of(domain, block);
  EXPECT_EQ(domain.counters().sticky_count, blocks.size());
  for (char* block : blocks) free_span(block);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), static_cast<std::int64_t>(blocks.size()));
  EXPECT_EQ(fabric.live(), 0u);
}

// A slot is read before a reference is taken, and the record may be another domain's by then. Seen
// to fail without the look at the domain.
TEST_F(Slots, with_a_record_of_another_domain_give_none_of_its_keys) {
  StubDomain domain(fabric), other(fabric);
  char* block = span(10, 1);
  domain.touch(block, 8);
  other.touch(block, 8);
  const std::uint64_t hits = other.counters().hits;
  Domain& mine = inside(domain);
  std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(block) - mine.head.arena_base;
  mine.counted[offset >> RDMALLOC_SLICE_SHIFT] = number_in(other, inside(other).counted, block);
  rdmalloc_reg* reg = domain.get(block, 8);
  ASSERT_NE(reg, nullptr);
  EXPECT_EQ(registration_of(reg)->domain_index(), mine.index);
  EXPECT_EQ(other.counters().hits, hits);
  EXPECT_EQ(other.counters().in_use, 0u);
  rdmalloc_reg_put(reg);
}

// Seen to fail without a look at the access, and where no length is the longest.
TEST_F(Slots, a_hit_of_nothing_is_refused) {
  StubDomain domain(fabric);
  char* block = span(10, 1);
  domain.touch(block, 8);
  EXPECT_EQ(domain.get(block, 0), nullptr);
  EXPECT_EQ(domain.last_error, -EINVAL);
  EXPECT_EQ(domain.get(block, 8, 0), nullptr);
  EXPECT_EQ(domain.last_error, -EINVAL);
  EXPECT_EQ(domain.get(block, 8, RDMALLOC_NO_REGISTER), nullptr);
  EXPECT_EQ(domain.last_error, -EINVAL);
  EXPECT_EQ(domain.counters().in_use, 0u);
}

// 2^37 hits of one registration, of which the record counts no more. Seen to fail where they are
// lost.
TEST_F(Slots, hits_that_fill_their_record_are_the_domains) {
  StubDomain domain(fabric);
  rdmalloc_reg* reg = domain.get(span(10, 1), 8);
  registration_of(reg)->state += kFold;
  rdmalloc_reg_put(reg);
  EXPECT_EQ(registration_of(reg)->state & kFold, 0u);
  EXPECT_EQ(domain.counters().hits, kFold >> kHitShift);
  EXPECT_TRUE(domain_is_valid(inside(domain)));
}

// Of two threads that put at once, both may come to list it. Seen to fail where both do.
TEST_F(Slots, of_two_that_list_a_registration_one_does) {
  StubDomain domain(fabric);
  rdmalloc_reg* reg = domain.get(span(10, 1), 8);
  rdmalloc_reg_put(reg);
  {
    RangeGuard guard(inside(domain), registration_of(reg));
    list_apart(inside(domain), registration_of(reg));
  }
  EXPECT_TRUE(domain_is_valid(inside(domain)));
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 1);
}

// What one side took before it met the other. Seen to fail where it stays taken.
TEST(SliceWords, I3_of_a_side_that_meets_the_other_are_idle_again) {
  std::atomic<std::uint32_t> array[4] = {};
  SliceWords words;
  words.use(array);
  ASSERT_TRUE(words.try_begin_purging({2, 3}));
  EXPECT_FALSE(words.try_begin_registering({0, 4}));
  words.end_purging({2, 3});
  ASSERT_TRUE(words.try_begin_purging({0, 4})) << "one is still being registered";
  words.end_purging({0, 4});
  ASSERT_TRUE(words.try_begin_registering({2, 3}));
  EXPECT_FALSE(words.try_begin_purging({0, 4}));
  EXPECT_TRUE(words.try_begin_registering({0, 4})) << "one is still being purged";
  words.end_registering({0, 4});
  words.end_registering({2, 3});
  for (const std::atomic<std::uint32_t>& word : array) EXPECT_EQ(word, 0u);
}

}  // namespace
