// Limits and refusals: I12. Each test was seen to fail; the comment at
// each says how.
#include <fcntl.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "alloc/os/fault.h"
#include "regcache/core/drop.h"
#include "regcache/core/stripes.h"
#include "tests/support/process.h"
#include "tests/unit/regcache/fixture.h"

namespace {

using rdmalloc::regcache::Domain;
using rdmalloc::regcache::domain_is_valid;
using rdmalloc::regcache::domain_of;
using rdmalloc::regcache::kStickyLooks;
using Limits = Regcache;

rdmalloc_domain_attr count_limit(std::uint64_t count) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = count;
  return attr;
}
rdmalloc_domain_attr byte_limit(std::uint64_t bytes) {
  rdmalloc_domain_attr attr = {};
  attr.max_bytes = bytes;
  return attr;
}

// Fails when pick_victims() takes the first of the order without looking at its present stamp.
TEST_F(Limits, the_least_recently_put_is_evicted_first_exactly) {
  StubDomain domain(fabric, count_limit(8));
  for (std::size_t i = 0; i < 8; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  std::vector<int> order = {3, 1, 7, 0, 5, 2, 6, 4};
  for (int i : order) domain.touch(spans[static_cast<std::size_t>(i)], 8);
  for (std::size_t i = 0; i < 8; ++i) {
    domain.touch(span(100 + 2 * i, 1), 8);
    char* victim = spans[static_cast<std::size_t>(order[i])];
    EXPECT_FALSE(fabric.touches(victim, 1)) << "victim " << i;
    EXPECT_EQ(fabric.live(), 8u);
  }
  EXPECT_EQ(domain.counters().evictions, 8u);
}

// Fails when ask_twice() does not know -EEXIST, or takes the least recently put instead.
TEST_F(Limits, what_is_in_the_way_of_a_registrar_without_overlaps_goes) {
  fabric.before_enter = [&](void* addr, std::size_t length) {
    return fabric.touches(addr, length) ? -EEXIST : 0;
  };
  StubDomain domain(fabric);
  char* elsewhere = span(100, 1);
  domain.touch(elsewhere, 8);
  char* old = span(10, 4);
  domain.touch(old, 8);
  free_span(old);
  // The addresses come back in a longer block, with no purge between.
  char* longer = span(10, 6);
  rdmalloc_reg* reg = domain.get(longer, 6 * kSlice);
  ASSERT_NE(reg, nullptr) << domain.last_error;
  EXPECT_EQ(domain.counters().evictions, 1u);
  EXPECT_TRUE(fabric.touches(elsewhere, 8));
  // One in use stays, and the error arrives.
  free_span(longer);
  char* across = span(14, 6);
  EXPECT_EQ(domain.get(across, 6 * kSlice), nullptr);
  EXPECT_EQ(domain.last_error, -EEXIST);
  EXPECT_TRUE(fabric.touches(longer, 8));
  rdmalloc_reg_put(reg);
  EXPECT_NE(domain.touch(across, 6 * kSlice), 0u) << "the next try works";
}

// A block that grows in place leaves a registration that is shorter than it is. Seen to fail, by
// -EEXIST from both calls, when what is sticky was never in the way.
TEST_F(Limits, without_overlaps_a_block_grown_in_place_is_served) {
  fabric.before_enter = [&](void* addr, std::size_t length) {
    return fabric.touches(addr, length) ? -EEXIST : 0;
  };
  StubDomain domain(fabric);
  rdmalloc_key key, longer;
  char* block = span(10, 2);
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  fake::resize_span(block, 4);
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, 4 * kSlice, RDMALLOC_ACCESS_LOCAL, &longer), 0);
  EXPECT_GT(longer.generation, key.generation);
  EXPECT_EQ(fabric.live(), 1u);
  EXPECT_EQ(domain.counters().sticky_bytes, 4 * kSlice);
  fake::resize_span(block, 6);
  rdmalloc_reg* reg = domain.get(block, 6 * kSlice);
  ASSERT_NE(reg, nullptr) << domain.last_error;
  // One that is held stays.
  fake::resize_span(block, 8);
  EXPECT_EQ(domain.get(block, 8 * kSlice), nullptr);
  EXPECT_EQ(domain.last_error, -EEXIST);
  rdmalloc_reg_put(reg);
  EXPECT_NE(domain.touch(block, 8 * kSlice), 0u);
}

// Fails when each sticky registration is in the way: the keys of the pieces are out.
TEST_F(Limits, without_overlaps_a_block_that_has_not_grown_keeps_its_keys) {
  fabric.before_enter = [&](void* addr, std::size_t length) {
    return fabric.touches(addr, length) ? -EEXIST : 0;
  };
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kSlice;
  StubDomain domain(fabric, attr);
  rdmalloc_key key;
  char* block = span(10, 4);
  for (std::size_t at : {std::size_t{0}, 2 * kSlice})
    ASSERT_EQ(rdmalloc_reg_key(domain.handle, block + at, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_EQ(domain.get(block + kSlice, 2 * kSlice), nullptr);
  EXPECT_EQ(domain.last_error, -EEXIST);
  EXPECT_EQ(domain.counters().sticky_count, 2u);
}

// A limit below what a slab takes, with room for a block of it. Seen to fail, by -ENOMEM, when only
// RLIMIT_MEMLOCK was a reason to register the pages asked for.
TEST_F(Limits, a_block_whose_slab_does_not_fit_is_registered_by_its_pages) {
  StubDomain domain(fabric, byte_limit(1 << 20));
  rdmalloc_reg* held = domain.get(span(100, 13), 8);  // 832 KiB
  ASSERT_NE(held, nullptr);
  char* slab = span(8, 8, 4096);
  rdmalloc_reg* block = domain.get(slab + 5 * 4096, 4096);
  ASSERT_NE(block, nullptr) << domain.last_error;
  EXPECT_EQ(rdmalloc_reg_length(block), 4096u);
  EXPECT_EQ(domain.get(slab, 64 * 4096), nullptr) << "that is too much";
  EXPECT_EQ(domain.last_error, -ENOMEM);
  rdmalloc_reg_put(block);
  rdmalloc_reg_put(held);
}

// The same for the share of a limit that uncounted keys may take: 768 KiB here. Seen to fail
// likewise, and when a wide registration that is cached hides that a narrow one would do.
TEST_F(Limits, a_key_whose_slab_exceeds_the_sticky_share_is_of_its_pages) {
  StubDomain domain(fabric, byte_limit(1 << 20));
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, span(100, 6), 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  char* slab = span(8, 8, 4096);
  EXPECT_NE(domain.touch(slab, 8), 0u);
  for (std::size_t i : {5u, 6u}) {
    ASSERT_EQ(rdmalloc_reg_key(domain.handle, slab + i * 4096, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
    EXPECT_EQ(domain.counters().sticky_bytes, 6 * kSlice + (i - 4) * 4096);
  }
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, slab, 8 * kSlice, RDMALLOC_ACCESS_LOCAL, &key),
            -ENOMEM);
}

// What is held is no candidate, so a get that a full limit refuses looks at nothing. Seen to fail
// when registrations that are held stay in the order: each refused get went through all of them.
TEST_F(Limits, a_refused_get_looks_through_nothing_that_is_held) {
  constexpr std::size_t kHeld = 1000;
  StubDomain domain(fabric, count_limit(kHeld));
  Domain& inside = *domain_of(domain.handle);
  std::vector<rdmalloc_reg*> held;
  for (std::size_t i = 0; i < kHeld; ++i) held.push_back(domain.get(span(10 + 2 * i, 1), 8));
  EXPECT_EQ(domain_totals(inside).listed_count, 0u) << "not one has been idle yet";
  char* another = span(9, 1);
  EXPECT_TRUE(domain.get(another, 8) == nullptr && domain.last_error == -ENOMEM);
  for (rdmalloc_reg* one : held) rdmalloc_reg_put(one);
  EXPECT_EQ(domain_totals(inside).listed_count, kHeld);
  EXPECT_EQ(domain_totals(inside).listed_bytes, kHeld * kSlice);
  // Held again, by hits: the first refusal finds that out.
  for (std::size_t i = 0; i < kHeld; ++i) held[i] = domain.get(spans[i], 8);
  EXPECT_EQ(domain.get(another, 8), nullptr);
  EXPECT_EQ(domain_totals(inside).listed_count, 0u);
  // The order of the puts is that of the evictions, also of what was set apart.
  rdmalloc_reg_put(held[7]);
  rdmalloc_reg_put(held[3]);
  EXPECT_NE(domain.touch(another, 8), 0u);
  EXPECT_FALSE(fabric.touches(spans[7], 8));
  EXPECT_TRUE(fabric.touches(spans[3], 8));
  for (std::size_t i = 0; i < kHeld; ++i)
    if (i != 7 && i != 3) rdmalloc_reg_put(held[i]);
  rdmalloc::regcache::WholeGuard guard(inside);
  EXPECT_TRUE(domain_is_valid(inside));
}

// Seen to fail when a call that lacks room asks of each sticky registration whether it could end.
TEST_F(Limits, a_refused_key_looks_at_few_sticky_ones_and_finds_all_in_time) {
  constexpr std::size_t kKeys = 3 * kStickyLooks;
  StubDomain domain(fabric, count_limit(4 * kStickyLooks));
  rdmalloc_key key;
  auto ask = [&](const char* block) {
    return rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key);
  };
  for (std::size_t i = 0; i < kKeys; ++i) ASSERT_EQ(ask(span(10 + 2 * i, 1)), 0);
  char* another = span(9, 1);
  std::uint64_t before = fake::idle_questions;
  EXPECT_EQ(ask(another), -ENOMEM);
  EXPECT_LE(fake::idle_questions - before, 2 * kStickyLooks);
  free_span(spans[kKeys / 2]);
  int refusals = 0;
  while (ask(another) != 0 && refusals < 10) ++refusals;
  EXPECT_LE(refusals, 3);
  EXPECT_EQ(domain.counters().sticky_count, kKeys);
  for (int i = 0; i < 10; ++i) free_span(spans[5]);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 11) << "which looks at all";
}

// Random use against a model of LRU.
TEST_F(Limits, eviction_order_equals_a_models) {
  StubDomain domain(fabric, count_limit(16));
  std::mt19937 random(42);
  for (std::size_t i = 0; i < 48; ++i) span(10 + 2 * i, 1);
  std::vector<std::size_t> model;  // least recently put first
  for (int step = 0; step < 20000; ++step) {
    std::size_t i = random() % spans.size();
    auto found = std::find(model.begin(), model.end(), i);
    std::uint64_t calls = fabric.calls;
    ASSERT_NE(domain.touch(spans[i], 8), 0u);
    ASSERT_EQ(fabric.calls - calls, found == model.end() ? 1u : 0u) << "step " << step;
    if (found != model.end()) model.erase(found);
    model.push_back(i);
    if (model.size() > 16) model.erase(model.begin());
  }
}

// The same by four threads, one put at a time, in a random order of threads: the order of the puts
// is that of the turns, and the order of eviction must be it. Fails when a stamp is taken at the
// get, or is one of the thread's own clock (a count of its puts).
TEST_F(Limits, eviction_order_equals_a_models_over_threads) {
  StubDomain domain(fabric, count_limit(16));
  for (std::size_t i = 0; i < 48; ++i) span(10 + 2 * i, 1);
  std::mutex turn;
  std::mt19937 random(7);
  std::vector<std::size_t> model;  // least recently put first
  int steps = 0, wrong = 0;
  auto body = [&] {
    for (;;) {
      std::lock_guard<std::mutex> guard(turn);
      if (++steps > 20000) return;
      std::size_t i = random() % spans.size();
      std::uint64_t calls = fabric.calls;
      rdmalloc_reg* reg = domain.get(spans[i], 8);
      if (reg == nullptr) {
        ++wrong;
        continue;
      }
      auto found = std::find(model.begin(), model.end(), i);
      if (fabric.calls - calls != (found == model.end() ? 1u : 0u)) ++wrong;
      if (found != model.end()) model.erase(found);
      // Another is put while this one is held: the put counts, not the get.
      if (!model.empty() && random() % 2 == 0) {
        std::size_t at = random() % model.size();
        std::size_t other = model[at];
        if (domain.touch(spans[other], 8, RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER) != 0) {
          model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
          model.push_back(other);
        } else if (model.size() < 16) {
          ++wrong;
        } else {
          model.erase(model.begin());  // evicted by the get: the least recently put of them all
          if (at != 0) ++wrong;
        }
      }
      rdmalloc_reg_put(reg);
      model.push_back(i);
      if (model.size() > 16) model.erase(model.begin());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(fabric.live(), 16u);
}

// Seen to fail without may_suffice(): both idle ones went, for a get that was refused all the same.
TEST_F(Limits, what_would_not_make_room_enough_is_not_evicted) {
  StubDomain domain(fabric, byte_limit(10 * kSlice));
  std::vector<rdmalloc_reg*> held;
  for (std::size_t i = 0; i < 8; ++i) held.push_back(domain.get(span(10 + 2 * i, 1), 8));
  for (std::size_t i = 8; i < 10; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  EXPECT_EQ(domain.get(span(40, 3), 3 * kSlice), nullptr);
  EXPECT_EQ(domain.last_error, -ENOMEM);
  EXPECT_EQ(domain.counters().evictions, 0u);
  EXPECT_EQ(fabric.live(), 10u);
  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
}

// A miss of a full domain takes all locks once, to find what was put least recently of all; the
// room that it made it takes under the lock of its range. Seen to fail, by 2, when each try took
// them all.
TEST_F(Limits, a_miss_that_evicts_takes_all_locks_once) {
  StubDomain domain(fabric, count_limit(4));
  Domain& inside = *domain_of(domain.handle);
  constexpr std::size_t kApart = 65;  // slices: another stripe each
  for (std::size_t i = 0; i < 4; ++i) domain.touch(span(kApart * (i + 1), 1), 8);
  for (std::size_t i = 4; i < 20; ++i) {
    std::uint64_t takes = inside.whole_takes;
    EXPECT_NE(domain.touch(span(kApart * (i + 1), 1), 8), 0u);
    EXPECT_EQ(inside.whole_takes - takes, 1u);
    EXPECT_FALSE(fabric.touches(spans[i - 4], 1)) << "the least recently put";
  }
}

// Fails when pick_victims() closes what is held.
TEST_F(Limits, what_is_in_use_is_never_evicted) {
  StubDomain domain(fabric, count_limit(4));
  std::vector<rdmalloc_reg*> held;
  for (std::size_t i = 0; i < 4; ++i) held.push_back(domain.get(span(10 + 2 * i, 1), 8));
  EXPECT_EQ(domain.get(span(30, 1), 8), nullptr);
  EXPECT_EQ(domain.last_error, -ENOMEM);
  EXPECT_EQ(fabric.calls, 4u) << "the registrar was asked for more than the limit";
  rdmalloc_reg_put(held[2]);
  rdmalloc_reg* fifth = domain.get(spans[4], 8);
  EXPECT_NE(fifth, nullptr);
  EXPECT_FALSE(fabric.touches(spans[2], 1));
  rdmalloc_reg_put(fifth);
  for (int i : {0, 1, 3}) rdmalloc_reg_put(held[static_cast<std::size_t>(i)]);
}

// Fails when reserve_room() does not count bytes.
TEST_F(Limits, bytes_are_limited) {
  StubDomain domain(fabric, byte_limit(8 * kSlice));
  domain.touch(span(10, 3), 8);
  domain.touch(span(20, 3), 8);
  domain.touch(span(30, 2), 8);
  EXPECT_EQ(fabric.bytes(), 8 * kSlice);
  domain.touch(span(40, 4), 8);  // needs both of the first two gone
  EXPECT_EQ(fabric.bytes(), 6 * kSlice);
  EXPECT_EQ(domain.counters().evictions, 2u);
  // A span larger than the limit: the pages asked for fit.
  char* large = span(50, 100);
  ASSERT_NE(domain.touch(large + 5 * kSlice, kSlice), 0u);
  EXPECT_LE(fabric.bytes(), 8 * kSlice);
  EXPECT_EQ(domain.get(large, 9 * kSlice), nullptr);
  EXPECT_EQ(domain.last_error, -ENOMEM);
}

// Fails when the limits of the environment are not read: run with RDMALLOC_REG_MAX_COUNT=3.
TEST_F(Limits, limits_come_from_the_environment) {
  if (getenv("RDMALLOC_REG_MAX_COUNT") == nullptr)
    GTEST_SKIP() << "SKIP: run by regcache_environment_test, which sets RDMALLOC_REG_MAX_COUNT=3";
  StubDomain domain(fabric);
  for (std::size_t i = 0; i < 5; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  EXPECT_EQ(fabric.live(), 3u);
}

// Fails when sticky_share() gives all of the limit.
TEST_F(Limits, uncounted_keys_leave_room_for_the_counted_way) {
  StubDomain domain(fabric, count_limit(8));
  rdmalloc_key key;
  int made = 0;
  for (std::size_t i = 0; i < 8; ++i)
    if (rdmalloc_reg_key(domain.handle, span(10 + 2 * i, 1), 8, RDMALLOC_ACCESS_LOCAL, &key) == 0)
      ++made;
  EXPECT_EQ(made, 6);
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, spans[7], 8, RDMALLOC_ACCESS_LOCAL, &key), -ENOMEM);
  EXPECT_NE(domain.touch(spans[7], 8), 0u);
  EXPECT_EQ(domain.counters().sticky_count, 6u);
  EXPECT_EQ(domain.counters().sticky_bytes, 6 * kSlice);
  // None of the keys went: they are not evicted.
  for (std::size_t i = 20; i < 40; ++i) ASSERT_NE(domain.touch(span(2 * i + 100, 1), 8), 0u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(fabric.touches(spans[i], 1));
}

// Fails when sticky_share() rounds a quarter down to none.
TEST_F(Limits, of_a_limit_of_two_keys_leave_one) {
  StubDomain domain(fabric, count_limit(2));
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, span(10, 1), 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, span(20, 1), 8, RDMALLOC_ACCESS_LOCAL, &key), -ENOMEM);
  EXPECT_NE(domain.touch(span(30, 1), 8), 0u);
}

// Fails when has_sticky_room() does not reclaim.
TEST_F(Limits, stickiness_ends_with_the_last_block_under_it) {
  StubDomain domain(fabric, count_limit(4));
  rdmalloc_key key;
  for (std::size_t i = 0; i < 3; ++i)
    ASSERT_EQ(rdmalloc_reg_key(domain.handle, span(10 + 2 * i, 1), 8, RDMALLOC_ACCESS_LOCAL, &key),
              0);
  char* fourth = span(30, 1);
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, fourth, 8, RDMALLOC_ACCESS_LOCAL, &key), -ENOMEM);
  free_span(spans[1]);
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, fourth, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_EQ(domain.counters().sticky_count, 3u);
}

// Fails when the failed record is left in the tree or its reservation is kept.
TEST_F(Limits, I12_a_refused_registration_leaves_nothing_behind) {
  StubDomain domain(fabric);
  char* block = span(10, 1);
  for (int error : {-EPERM, -ENOMEM, -ENOSPC, -EIO}) {
    fabric.before_enter = [error](void*, std::size_t) { return error; };
    EXPECT_EQ(domain.get(block, 8), nullptr);
    EXPECT_EQ(domain.last_error, error);
  }
  fabric.before_enter = [](void*, std::size_t) { return 5; };  // breaks its contract
  EXPECT_EQ(domain.get(block, 8), nullptr);
  EXPECT_EQ(domain.last_error, -EIO);
  fabric.before_enter = nullptr;
  auto counters = domain.counters();
  EXPECT_EQ(counters.refusals, 5u);
  EXPECT_EQ(counters.live_count, 0u);
  free_span(block);
  EXPECT_EQ(fake::purge(10, 1), 0) << "the words were left taken";
  span(10, 1);
  EXPECT_NE(domain.touch(block, 8), 0u);
}

// Fails when ask_twice() asks once, or for ever, or knows one of the two errors only.
TEST_F(Limits, I12_a_full_registrar_is_asked_once_more_after_evicting) {
  StubDomain domain(fabric);
  for (std::size_t i = 0; i < 4; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  fabric.before_enter = [&](void*, std::size_t) { return fabric.live() < 4 ? 0 : -ENOSPC; };
  EXPECT_NE(domain.touch(span(20, 1), 8), 0u);
  fabric.before_enter = nullptr;
  fabric.capacity_bytes = 4 * kSlice;
  std::uint64_t calls = fabric.calls;
  EXPECT_NE(domain.touch(span(30, 2), 8), 0u);
  EXPECT_EQ(fabric.calls - calls, 2u);
  EXPECT_EQ(domain.counters().evictions, 1u + 2u);
  EXPECT_EQ(domain.counters().refusals, 1u + 1u);
  // Everything held: one refusal, at once.
  std::vector<rdmalloc_reg*> held = {domain.get(spans[3], 8), domain.get(spans[4], 8),
                                     domain.get(spans[5], 8)};
  calls = fabric.calls;
  EXPECT_EQ(domain.get(span(40, 1), 8), nullptr);
  EXPECT_EQ(domain.last_error, -ENOMEM);
  EXPECT_EQ(fabric.calls - calls, 1u);
  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
}

// Back-pressure: a registrar without memory, and nothing to evict for it. Fails when ask_twice()
// asks for it at each refusal, or never.
TEST_F(Limits, what_is_free_goes_back_when_the_registrar_has_no_memory) {
  StubDomain domain(fabric);
  fabric.capacity_bytes = 4 * kSlice;
  std::vector<rdmalloc_reg*> held;
  for (std::size_t i = 0; i < 3; ++i) held.push_back(domain.get(span(10 + 2 * i, 1), 8));
  domain.touch(span(20, 1), 8);
  int before = fake::purge_requests;
  EXPECT_NE(domain.touch(span(22, 1), 8), 0u) << "an eviction was enough";
  EXPECT_EQ(fake::purge_requests, before);
  held.push_back(domain.get(spans[4], 8));
  EXPECT_EQ(domain.get(span(24, 1), 8), nullptr);
  EXPECT_EQ(domain.last_error, -ENOMEM);
  EXPECT_EQ(fake::purge_requests, before + 1);
  EXPECT_EQ(domain.counters().purge_requests, 1u);
  fabric.before_enter = [](void*, std::size_t) { return -EPERM; };
  EXPECT_EQ(domain.get(spans[5], 8), nullptr);
  EXPECT_EQ(fake::purge_requests, before + 1) << "no want of memory";
  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
}

// Fails when refused calls are left out of either.
TEST_F(Limits, the_mean_time_of_registering_is_that_of_all_calls) {
  StubDomain domain(fabric);
  EXPECT_EQ(domain.counters().register_ns_mean, 0u);
  for (std::size_t i = 0; i < 5; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  fabric.before_enter = [](void*, std::size_t) { return -EPERM; };
  for (std::size_t i = 0; i < 5; ++i) domain.touch(span(30 + 2 * i, 1), 8);
  auto counters = domain.counters();
  EXPECT_EQ(counters.register_ns_mean, counters.register_ns_total / 10);
  EXPECT_GE(counters.register_ns_worst, counters.register_ns_mean);
}

// Each page of metadata refused in turn, from the opening on: an error or success, never half a
// thing; and invalidating goes on working whatever fails. Fails when open_place() does not undo.
TEST_F(Limits, every_internal_allocation_may_fail) {
  for (int nth = 1; nth <= 8; ++nth) {
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kMapMetadata, static_cast<std::uint64_t>(nth));
    {
      StubDomain domain(fabric);
      if (domain.open_error != 0) {
        EXPECT_EQ(domain.open_error, -ENOMEM);
        domain.handle = nullptr;
      } else {
        char* block = span(10, 1);
        bool has_key = domain.touch(block, 8) != 0;
        int completions = 0;
        auto done = [](void* arg) { ++*static_cast<int*>(arg); };
        EXPECT_EQ(rdmalloc_invalidate(domain.handle, block, 8, done, &completions),
                  has_key ? 1 : 0);
        EXPECT_EQ(completions, 1);
        EXPECT_EQ(fabric.live(), 0u);
        free_span(block);
      }
    }
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kMapMetadata, 0);
  }
}

// Fails when take() returns a record past its chunk, or make() does not look at NULL.
TEST_F(Limits, a_refused_record_is_an_error_and_the_cache_goes_on) {
  StubDomain domain(fabric);
  static char foreign[64];
  std::vector<rdmalloc_reg*> held;
  int refused = 0;
  // Until the pool has asked for a chunk twice, whatever other tests have left it with.
  while (refused < 2 && held.size() < 400000) {
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kCommit, 1);
    rdmalloc_reg* reg = domain.get(foreign, sizeof foreign);
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kCommit, 0);
    if (reg == nullptr) {
      ASSERT_EQ(domain.last_error, -ENOMEM);
      ++refused;
      reg = domain.get(foreign, sizeof foreign);
    }
    ASSERT_NE(reg, nullptr);
    held.push_back(reg);
  }
  EXPECT_EQ(refused, 2);
  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when records are unmapped and mapped one by one, or chunks do not grow.
TEST_F(Limits, a_hundred_thousand_rounds_leave_the_mappings_as_they_are) {
  StubDomain domain(fabric, byte_limit(std::uint64_t{64} << 20));
  std::mt19937 random(1);
  std::size_t at = 10;
  while (at < 60000) {
    std::size_t slices = 1 + random() % 64;
    span(at, slices);
    at += slices + random() % 3;
  }
  int before = rdmalloc_test::mapping_count();
  for (int round = 0; round < 100000; ++round)
    ASSERT_NE(domain.touch(spans[random() % spans.size()], 1 + random() % kSlice), 0u);
  EXPECT_LT(rdmalloc_test::mapping_count() - before, 16);
  EXPECT_LE(fabric.bytes(), std::size_t{64} << 20);
}

// Fails when move_quarantined() or the drops are left out of close.
TEST_F(Limits, closing_refuses_while_held_and_then_drops_everything) {
  StubDomain domain(fabric);
  rdmalloc_key sticky;
  rdmalloc_reg* held = domain.get(span(10, 1), 8);
  domain.touch(span(12, 1), 8);
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, span(14, 1), 8, RDMALLOC_ACCESS_LOCAL, &sticky), 0);
  EXPECT_EQ(domain.close(), -EBUSY);
  auto counters = domain.counters();
  EXPECT_EQ(counters.live_count, 3u);
  EXPECT_EQ(counters.sticky_count, 1u);
  EXPECT_EQ(counters.deregistrations, 0u);
  rdmalloc_key again;
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, spans[2], 8,
                             RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER, &again),
            0);
  EXPECT_NE(domain.touch(spans[1], 8, RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER), 0u);
  rdmalloc_reg_put(held);
  rdmalloc_domain* closed = domain.handle;
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(fabric.closes, 1);
  EXPECT_EQ(rdmalloc_domain_close(closed), -EINVAL);
  rdmalloc_reg* reg = nullptr;
  EXPECT_EQ(rdmalloc_reg_get(closed, spans[0], 8, RDMALLOC_ACCESS_LOCAL, &reg), -EINVAL);
}

// Fails when a table keeps a slot of the domain before.
TEST_F(Limits, a_thousand_openings_and_closings_start_empty) {
  char* block = span(10, 1);
  for (int i = 0; i < 1000; ++i) {
    StubDomain domain(fabric);
    ASSERT_EQ(domain.open_error, 0);
    ASSERT_EQ(domain.get(block, 8, RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER), nullptr);
    ASSERT_NE(domain.touch(block, 8), 0u);
    rdmalloc_key key;
    ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
    ASSERT_EQ(domain.close(), 0);
  }
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when flush takes sticky ones or those in use.
TEST_F(Limits, flush_drops_what_is_idle_and_not_sticky) {
  StubDomain domain(fabric);
  rdmalloc_key key;
  char* held_block = span(10, 1);
  rdmalloc_reg* held = domain.get(held_block, 8);
  for (std::size_t i = 0; i < 5; ++i) domain.touch(span(20 + 2 * i, 1), 8);
  char* keyed = span(40, 1);
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, keyed, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 5);
  EXPECT_EQ(fabric.live(), 2u);
  free_span(keyed);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 1) << "nothing lives under the key any more";
  rdmalloc_reg_put(held);
  // What is dropped otherwise is not counted among these.
  EXPECT_EQ(rdmalloc_invalidate(domain.handle, held_block, 8, nullptr, nullptr), 1);
  EXPECT_EQ(domain.counters().flush_drops, 6u);
  EXPECT_EQ(domain.counters().deregistrations, 7u);
}

}  // namespace
