// Purges against registrations: I3 and I5. Each test was seen to fail; the
// comment at each says how.
#include <algorithm>

#include "alloc/core/quarantine.h"
#include "regcache/core/stripes.h"
#include "tests/support/capture.h"
#include "tests/unit/regcache/fixture.h"

namespace {

using rdmalloc::regcache::Domain;
using rdmalloc::regcache::domain_is_valid;
using rdmalloc::regcache::domain_of;
using rdmalloc::regcache::WholeGuard;
using Purge = Regcache;

// Fails when on_purge() returns before drop_list().
TEST_F(Purge, I3_idle_registrations_are_gone_before_the_pages_are) {
  StubDomain domain(fabric);
  char* block = span(10, 4);
  domain.touch(block, 4 * kSlice);
  free_span(block);
  EXPECT_EQ(fake::purge(11, 1), 0);  // a part of the registration's range is enough
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(domain.counters().purge_drops, 1u);
}

// Fails when close_idle() ignores references.
TEST_F(Purge, I3_a_span_with_a_registration_in_use_is_not_purged) {
  StubDomain domain(fabric);
  char* block = span(10, 4);
  rdmalloc_reg* reg = domain.get(block, 4 * kSlice);
  rdmalloc_key key;
  rdmalloc_reg_key_of(reg, &key);
  free_span(block);  // released while in use: the NIC may still write
  EXPECT_EQ(fake::purge(10, 4), -EBUSY);
  EXPECT_EQ(fabric.use(key, block, 8), StubFabric::Use::kRight);
  EXPECT_EQ(domain.counters().purge_refusals, 1u);
  rdmalloc_reg_put(reg);
  EXPECT_EQ(fabric.live(), 1u);
  EXPECT_EQ(fake::purge(10, 4), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(fabric.leaves, 1u);
}

// Fails when a refused purge does not reopen what it closed.
TEST_F(Purge, a_refused_purge_leaves_every_registration_as_it_was) {
  StubDomain domain(fabric);
  char* low = span(10, 2);
  char* high = span(12, 2);
  std::uint64_t low_key = domain.touch(low, 8);
  rdmalloc_key sticky;
  char* middle = span(14, 1);
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, middle, 8, RDMALLOC_ACCESS_LOCAL, &sticky), 0);
  rdmalloc_reg* held = domain.get(high, 8);
  free_span(low);
  free_span(high);
  free_span(middle);
  EXPECT_EQ(fake::purge(10, 5), -EBUSY);
  span(10, 2);
  span(14, 1);
  EXPECT_EQ(domain.touch(low, 8), low_key);
  rdmalloc_key again;
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, middle, 8, RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER,
                             &again),
            0);
  EXPECT_EQ(again.generation, sticky.generation);
  EXPECT_EQ(domain.counters().sticky_count, 1u);
  EXPECT_EQ(fabric.leaves, 0u);
  rdmalloc_reg_put(held);
}

// Fails when Claim does not ask rdmalloc_range_is_idle() over the whole registration.
TEST_F(Purge, I3_a_sticky_registration_stays_while_its_range_has_a_block) {
  StubDomain domain(fabric);
  char* block = span(10, 4);
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  free_span(block);
  char* part = span(10, 1);  // lives in the old span's range, under the old registration
  rdmalloc_key part_key;
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, part, 8, RDMALLOC_ACCESS_LOCAL, &part_key), 0);
  EXPECT_EQ(part_key.generation, key.generation);
  EXPECT_EQ(fake::purge(11, 3), -EBUSY);
  EXPECT_EQ(domain.counters().sticky_count, 1u) << "it may be evicted";
  EXPECT_EQ(fabric.use(part_key, part, 8), StubFabric::Use::kRight);
  free_span(part);
  EXPECT_EQ(fake::purge(11, 3), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(domain.counters().sticky_count, 0u);
}

// Fails when purges look at the slots only: the older registration's slots are taken over there.
TEST_F(Purge, I3_a_superseded_registration_is_found_by_its_range) {
  StubDomain domain(fabric);
  char* first = span(10, 4);
  domain.touch(first, 4 * kSlice);
  free_span(first);
  char* second = span(12, 4);
  domain.touch(second, 4 * kSlice);  // takes slots 12 and 13 over
  free_span(second);
  EXPECT_EQ(fake::purge(12, 4), 0);
  EXPECT_EQ(fabric.live(), 0u);
  char* whole = span(10, 4);
  rdmalloc_reg* reg = domain.get(whole, 4 * kSlice);
  rdmalloc_key key;
  rdmalloc_reg_key_of(reg, &key);
  EXPECT_EQ(fabric.use(key, whole, 4 * kSlice), StubFabric::Use::kRight);
  rdmalloc_reg_put(reg);
}

// Fails when settle_made() runs after end_registering(), or try_begin_purging() overwrites a count.
TEST_F(Purge, I3_no_purge_begins_while_a_registration_is_being_made) {
  StubDomain domain(fabric);
  char* block = span(10, 2);
  int refused = 0;
  fabric.before_enter = [&](void*, std::size_t) {
    // The test's own misuse, so that the meeting happens: freed while it is being registered.
    free_span(block);
    refused = fake::purge(10, 2);
    return 0;
  };
  rdmalloc_reg* reg = domain.get(block, 8);
  EXPECT_EQ(refused, -EBUSY);
  ASSERT_NE(reg, nullptr);
  rdmalloc_reg_put(reg);
}

// Fails when make() does not take the words.
TEST_F(Purge, I3_no_registration_begins_while_its_range_is_being_purged) {
  StubDomain domain(fabric);
  char* block = span(10, 4);
  rdmalloc_reg* reg = nullptr;
  // The test's own misuse, so that the meeting happens: pages of a block that lives.
  EXPECT_EQ(fake::purge_pages_of(block, 0, 1, RDMALLOC_PURGE_REQUEST,
                                 [&] { reg = domain.get(block, 8); }),
            0);
  EXPECT_EQ(reg, nullptr);
  EXPECT_EQ(domain.last_error, -EAGAIN);
  EXPECT_NE(domain.touch(block, 8), 0u) << "the words are idle again";
  EXPECT_EQ(domain.counters().live_count, 1u);
}

// Fails when the words of the slice behind the range are taken too.
TEST_F(Purge, blocks_beside_the_range_are_registered_meanwhile) {
  StubDomain domain(fabric);
  char *before = span(9, 1), *behind = span(11, 1);
  int registered = 0;
  auto get_both = [&] {
    for (char* block : {before, behind}) registered += domain.touch(block, 8) != 0;
  };
  EXPECT_EQ(fake::purge(10, 1, get_both), 0);
  EXPECT_EQ(registered, 2);
}

// What lives beside the range could be registered with a part of it only.
TEST_F(Purge, a_registrar_coarser_than_a_slice_agrees_to_whole_units_only) {
  fabric.ops.granularity = 4 * kSlice;
  StubDomain domain(fabric);
  char* neighbour = span(12, 1);
  rdmalloc_reg* reg = nullptr;
  EXPECT_EQ(fake::purge(13, 1), -EBUSY);
  EXPECT_EQ(fake::purge(13, 7), -EBUSY);
  EXPECT_EQ(fake::purge(16, 7), -EBUSY);
  EXPECT_EQ(domain.counters().purge_refusals, 3u);
  EXPECT_EQ(fake::purge(16, 4, [&] { reg = domain.get(neighbour, 8); }), 0);
  EXPECT_NE(reg, nullptr) << domain.last_error;
  rdmalloc_reg_put(reg);
}

// Fails when the generation is taken from a counter that a drop sets back.
TEST_F(Purge, I5_a_key_from_before_a_purge_is_never_seen_again) {
  StubDomain domain(fabric);
  std::uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    char* block = span(10, 1);
    rdmalloc_key key;
    ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
    ASSERT_GT(key.generation, last);
    ASSERT_EQ(fabric.use(key, block, 8), StubFabric::Use::kRight);
    last = key.generation;
    free_span(block);
    ASSERT_EQ(fake::purge(10, 1), 0);
    ASSERT_EQ(fabric.use(key, block, 8), StubFabric::Use::kNoSuchKey);
  }
}

// The control: a purge that notifies no cache leaves a key that reaches the old pages. If this test
// fails, the stub can't see staleness, and the others prove nothing.
TEST_F(Purge, control_a_silent_purge_makes_keys_stale) {
  StubDomain domain(fabric);
  char* block = span(10, 1);
  domain.touch(block, 8);
  free_span(block);
  fake::purge_silently(10, 1);
  span(10, 1);
  rdmalloc_reg* reg = domain.get(block, 8);
  rdmalloc_key key;
  rdmalloc_reg_key_of(reg, &key);
  EXPECT_EQ(fabric.use(key, block, 8), StubFabric::Use::kStale);
  rdmalloc_reg_put(reg);
}

// Fails when a failed deregistration is erased from the tree.
TEST_F(Purge, a_range_that_could_not_be_deregistered_is_never_purged) {
  constexpr std::size_t kFar = 100000;  // quarantined for the rest of the process
  StubDomain domain(fabric);
  char* block = span(kFar, 1);
  domain.touch(block, 8);
  free_span(block);
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  rdmalloc_test::Capture capture;
  EXPECT_EQ(fake::purge(kFar, 1), -EBUSY);
  EXPECT_NE(capture.end().find("stub"), std::string::npos);
  fabric.before_leave = nullptr;
  EXPECT_EQ(fake::purge(kFar, 1), -EBUSY);
  EXPECT_EQ(domain.counters().quarantined, 1u);
  // Its memory is usable all the same, and gets a registration of its own.
  span(kFar, 1);
  EXPECT_NE(domain.touch(block, 8), 0u);
  free_span(block);
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(fake::purge(kFar, 1), -EBUSY) << "also after its domain is closed";
}

// Fails when each of them is told of, or the bytes are not counted, or not moved with their domain.
TEST_F(Purge, ranges_not_deregistered_are_counted_and_reported_once) {
  constexpr std::size_t kFar = 100100;
  std::uint64_t ranges = rdmalloc::quarantined_ranges, bytes = rdmalloc::quarantined_bytes;
  StubDomain domain(fabric);
  for (std::size_t i = 0; i < 3; ++i) {
    char* block = span(kFar + i, 1);
    domain.touch(block, kSlice);
    free_span(block);
  }
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  rdmalloc_test::Capture capture;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(fake::purge(kFar + i, 1), -EBUSY);
  std::string told = capture.end();
  fabric.before_leave = nullptr;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(domain.counters().quarantined, 3u);
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(rdmalloc::quarantined_ranges, ranges + 3);
  EXPECT_EQ(rdmalloc::quarantined_bytes, bytes + 3 * kSlice);
}

// Fails when a domain that opens in the place of another has that one's report behind it.
TEST_F(Purge, each_domain_reports_the_first_that_was_not_deregistered) {
  for (std::size_t i = 0; i < 2; ++i) {
    StubDomain domain(fabric);
    char* block = span(100200 + i, 1);  // quarantined for the rest of the process
    domain.touch(block, 8);
    fabric.before_leave = [](void*, std::size_t) { return -EIO; };
    rdmalloc_test::Capture capture;
    EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 0);
    EXPECT_NE(capture.end().find("could not deregister"), std::string::npos);
    fabric.before_leave = nullptr;
  }
}

// Fails when clear_domain() drops on the purge thread whatever the flags say.
TEST_F(Purge, a_registrar_for_user_threads_only_is_never_called_by_a_purge) {
  StubFabric& own = another_fabric(RDMALLOC_REGISTRAR_SYNC_DEREG | RDMALLOC_REGISTRAR_EXACT_ACCESS);
  StubDomain domain(own);
  char* block = span(10, 1);
  char* other = span(20, 1);
  domain.touch(block, 8);
  free_span(block);
  EXPECT_EQ(fake::purge(10, 1), -EBUSY);
  EXPECT_EQ(own.leaves, 0u);
  EXPECT_EQ(domain.counters().purge_refusals, 1u);
  domain.touch(other, 8);  // a call of the user's: its thread drops it
  EXPECT_EQ(own.leaves, 1u);
  EXPECT_EQ(fake::purge(10, 1), 0);
  EXPECT_EQ(domain.counters().purge_drops, 1u);
  // And at close, when no call came.
  free_span(other);
  EXPECT_EQ(fake::purge(20, 1), -EBUSY);
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(own.live(), 0u);
}

// Fails when is_in_page_event() is not asked.
TEST_F(Purge, calls_from_inside_a_page_event_do_not_hang) {
  StubDomain domain(fabric);
  StubDomain other(fabric);
  char* block = span(10, 1);
  domain.touch(block, 8);
  free_span(block);
  std::vector<int> results;
  fabric.before_leave = [&](void*, std::size_t) {
    rdmalloc_domain* handle = nullptr;
    results.push_back(rdmalloc_domain_open(&fabric.ops, &fabric, nullptr, &handle));
    results.push_back(rdmalloc_domain_close(other.handle));
    results.push_back(static_cast<int>(rdmalloc_domain_flush(other.handle)));
    results.push_back(static_cast<int>(rdmalloc_invalidate(nullptr, block, 8, nullptr, nullptr)));
    return 0;
  };
  EXPECT_EQ(fake::purge(10, 1), 0);
  fabric.before_leave = nullptr;
  EXPECT_EQ(results, std::vector<int>(4, -EDEADLK));
}

// 40,000 releases without a further call of the cache: what they leave is bounded by the purges
// alone. Fails when a drop does not give its record back (the second round would map more).
TEST_F(Purge, releases_without_a_further_call_are_drained_by_purges) {
  StubDomain domain(fabric);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 40000; ++i) domain.touch(span(10 + i, 1), 8);
    while (!spans.empty()) free_span(spans.back());
    EXPECT_EQ(fabric.live(), 40000u);
    for (std::size_t i = 0; i < 40000; i += 400) ASSERT_EQ(fake::purge(10 + i, 400), 0);
    EXPECT_EQ(fabric.live(), 0u);
    EXPECT_EQ(domain.counters().live_count, 0u);
  }
}

// Two domains, one of which refuses: nothing stale in either.
TEST_F(Purge, one_domain_in_use_protects_the_range_for_all) {
  StubFabric& second = another_fabric(fabric.ops.flags);
  StubDomain a(fabric), b(second);
  char* block = span(10, 1);
  a.touch(block, 8);
  rdmalloc_reg* held = b.get(block, 8);
  free_span(block);
  EXPECT_EQ(fake::purge(10, 1), -EBUSY);
  rdmalloc_reg_put(held);
  EXPECT_EQ(fake::purge(10, 1), 0);
  EXPECT_EQ(fabric.live() + second.live(), 0u);
}

// ---- pages of a slab in use ----

// Fails when the claim does not look at keeps_idle.
TEST_F(Purge, a_slabs_cached_registration_outlives_its_free_pages_decay) {
  StubDomain domain(fabric);
  char* slab = span(10, 1, 1024);
  std::uint64_t key = domain.touch(slab, 1024);
  EXPECT_EQ(fake::purge_pages_of(slab, 4, 2, RDMALLOC_PURGE_DECAY), -EBUSY);
  EXPECT_EQ(domain.counters().purge_refusals, 1u);
  EXPECT_EQ(domain.touch(slab, 1024), key);
  EXPECT_EQ(fabric.calls, 1u);
  // Asked for, or short of memory: the pages count for more.
  EXPECT_EQ(fake::purge_pages_of(slab, 4, 2, RDMALLOC_PURGE_REQUEST), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_NE(domain.touch(slab, 1024), key);
}

// Fails when Claim asks no rdmalloc_range_is_idle(), and when reopen() takes no room of the keys'
// share of a limit.
TEST_F(Purge, I5_pages_of_a_slab_stay_while_a_key_of_it_may_be_in_use) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = 4;
  StubDomain domain(fabric, attr);
  char* slab = span(10, 1, 1024);
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, slab, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_EQ(fake::purge_pages_of(slab, 4, 2, RDMALLOC_PURGE_PRESSURE), -EBUSY);
  EXPECT_EQ(fabric.use(key, slab, 8), StubFabric::Use::kRight);
  {
    Domain& inside = *domain_of(domain.handle);
    WholeGuard guard(inside);
    EXPECT_TRUE(domain_is_valid(inside));
  }
  free_span(slab);
  EXPECT_EQ(fake::purge(10, 1), 0);
  span(10, 1, 1024);
}

// Fails without keeps_to_block(): -EFAULT for a block that lives.
TEST_F(Purge, a_block_beside_pages_in_purge_is_registered_by_its_own_pages) {
  StubDomain domain(fabric);
  char* slab = span(10, 1, 1024);
  char* block = slab + 9 * 1024;
  rdmalloc_key sticky = {};
  rdmalloc_reg* held = nullptr;
  rdmalloc_reg* remote = nullptr;
  ASSERT_EQ(fake::purge_pages_of(slab, 4, 2, RDMALLOC_PURGE_DECAY,
                                 [&] {
                                   held = domain.get(block, 1024);
                                   remote = domain.get(block, 512, RDMALLOC_ACCESS_REMOTE_READ);
                                   rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL,
                                                    &sticky);
                                 }),
            0);
  ASSERT_NE(held, nullptr) << domain.last_error;
  ASSERT_NE(remote, nullptr) << domain.last_error;
  for (const StubFabric::Entry& entry : fabric.entries()) {
    EXPECT_GE(entry.base, slab + 2 * kPage);
    EXPECT_LE(entry.base + entry.length, slab + 3 * kPage);
  }
  rdmalloc_key key;
  rdmalloc_reg_key_of(held, &key);
  EXPECT_EQ(fabric.use(key, block, 1024), StubFabric::Use::kRight);
  EXPECT_EQ(fabric.use(sticky, block, 8), StubFabric::Use::kRight);
  // The words are as they were: once the purge has ended the slab is registered as a whole.
  EXPECT_NE(domain.touch(slab, 1024), 0u) << domain.last_error;
  EXPECT_EQ(fabric.entries().back().length, kSlice);
  rdmalloc_reg_put(held);
  rdmalloc_reg_put(remote);
  free_span(slab);
  EXPECT_EQ(fake::purge(10, 1), 0);
  EXPECT_EQ(fabric.live(), 0u);
  span(10, 1, 1024);
}

// Seen to fail when keeps_to_block() asked for the slab only: the pages of a free block between the
// two were registered while they went.
TEST_F(Purge, I3_blocks_around_pages_in_purge_are_not_registered_together) {
  StubDomain domain(fabric);
  char* slab = span(10, 1, kPage);
  char* blocks = slab + 4 * kPage;
  rdmalloc_reg* around = nullptr;
  rdmalloc_reg* single = nullptr;
  int error = 0;
  ASSERT_EQ(fake::purge_pages_of(slab, 5, 1, RDMALLOC_PURGE_DECAY,
                                 [&] {
                                   around = domain.get(blocks, 3 * kPage);
                                   error = domain.last_error;
                                   single = domain.get(blocks, kPage);
                                 }),
            0);
  EXPECT_EQ(around, nullptr);
  EXPECT_EQ(error, -EAGAIN);
  EXPECT_NE(single, nullptr) << domain.last_error;
  rdmalloc_reg_put(around);
  rdmalloc_reg_put(single);
  EXPECT_NE(domain.touch(blocks, 3 * kPage), 0u) << domain.last_error;
}

// A get of what was freed, inside a page event or beside one. Seen to fail, by a registration of
// the pages that went, when such a get looked at no word and no page.
TEST_F(Purge, I5_a_free_block_on_pages_in_purge_is_refused) {
  StubDomain domain(fabric);
  char* slab = span(10, 1, 1024);
  char* freed = slab + 17 * 1024;  // on the page that is purged
  rdmalloc_key key;
  auto is_refused = [&] {
    for (std::uint32_t access : {RDMALLOC_ACCESS_LOCAL, RDMALLOC_ACCESS_REMOTE_READ})
      if (domain.get(freed, 1024, access) != nullptr || domain.last_error != -EAGAIN) return false;
    return rdmalloc_reg_key(domain.handle, freed, 8, RDMALLOC_ACCESS_LOCAL, &key) == -EAGAIN;
  };
  for (auto reason : {RDMALLOC_PURGE_DECAY, RDMALLOC_PURGE_REQUEST}) {
    ASSERT_EQ(fake::purge_pages_of(slab, 4, 1, reason,
                                   [&] {
                                     EXPECT_TRUE(is_refused()) << domain.last_error;
                                     EXPECT_NE(domain.touch(slab + 12 * 1024, 1024), 0u);
                                     EXPECT_NE(domain.touch(slab + 20 * 1024, 1024), 0u);
                                   }),
              0);
    EXPECT_EQ(fabric.live(), 2u);
    EXPECT_NE(domain.touch(freed, 1024), 0u) << "after the purge: " << domain.last_error;
    EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 1);
  }
}

// Fails when is_too_fine_for() does not look at what is in use.
TEST_F(Purge, a_registrar_too_coarse_for_single_pages_keeps_slabs_pages) {
  fabric.ops.granularity = 2 * kPage;
  StubDomain domain(fabric);
  char* slab = span(10, 1, 1024);
  EXPECT_EQ(fake::purge_pages_of(slab, 4, 2, RDMALLOC_PURGE_REQUEST), -EBUSY);
}

}  // namespace
