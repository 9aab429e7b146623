// Many threads at once. The threads' meetings are random, what must hold of
// them is not. TSan runs these too. Each test was seen to fail; the comment at each says how.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "regcache/core/stripes.h"
#include "tests/unit/regcache/fixture.h"

namespace {

class Threads : public Regcache {
 protected:
  RecordsAtOnce at_once;
  static constexpr int kThreads = 4;
  template <class Body>
  static void run(Body body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }
  static void expect_valid(StubDomain& domain) {
    auto* inside = rdmalloc::regcache::domain_of(domain.handle);
    rdmalloc::regcache::WholeGuard guard(*inside);
    EXPECT_TRUE(rdmalloc::regcache::domain_is_valid(*inside));
  }
};

// One thread is inside the registrar, to register or to deregister; until it is let go, this one
// hits, misses, puts, asks for keys, invalidates and flushes on other ranges of the domain, opens
// another and closes it, and each call ends. Fails, by its time limit, when register_ or deregister
// is called under the domain's lock.
TEST_F(Threads, one_inside_the_registrar_keeps_no_other_waiting) {
  StubDomain domain(fabric);
  char* slow = span(10, 1);
  char* hit = span(20, 1);
  domain.touch(hit, 8);
  for (bool registers : {true, false}) {
    RegistrarGate gate;
    auto pause = [&](void* base, std::size_t) { return base == slow ? gate.pass() : 0; };
    if (!registers) domain.touch(slow, 8);
    (registers ? fabric.before_enter : fabric.before_leave) = pause;
    std::thread paused([&] {
      if (registers) {
        EXPECT_NE(domain.touch(slow, 8), 0u);
      } else {
        EXPECT_EQ(rdmalloc_invalidate(domain.handle, slow, 8, nullptr, nullptr), 1);
      }
    });
    gate.wait_until_inside();
    std::uint64_t calls = fabric.calls, leaves = fabric.leaves;
    for (std::size_t i = 0; i < 8; ++i) {
      char* missed = span(100 + 8 * i, 1);
      EXPECT_NE(domain.touch(hit, 8), 0u);
      EXPECT_NE(domain.touch(missed, 8), 0u);
      rdmalloc_key key;
      EXPECT_EQ(rdmalloc_reg_key(domain.handle, missed, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
      EXPECT_EQ(rdmalloc_invalidate(domain.handle, missed, 8, nullptr, nullptr), 1);
      free_span(missed);
    }
    StubDomain other(fabric);
    EXPECT_NE(other.touch(hit, 8), 0u);
    EXPECT_EQ(other.close(), 0);
    EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 1);
    // What was missed came and went meanwhile; so did what the other domain and the flush had of
    // `hit`.
    EXPECT_EQ(fabric.calls - calls, 9u);
    EXPECT_EQ(fabric.leaves - leaves, 10u);
    gate.open();
    paused.join();
    fabric.before_enter = fabric.before_leave = nullptr;
    domain.touch(hit, 8);
    expect_valid(domain);
  }
}

// A whole life of a registration takes the lock of its own range six times and no other, while the
// locks of all other ranges are held. A limit that is not reached changes nothing. Seen to fail, by
// its time limit, when a miss takes all locks; by the count, when a look that finds nothing does.
TEST_F(Threads, misses_on_different_ranges_do_not_meet_at_a_lock) {
  using namespace rdmalloc::regcache;
  for (bool is_bounded : {false, true}) {
    rdmalloc_domain_attr attr = {};
    attr.max_bytes = is_bounded ? std::uint64_t{1} << 30 : 0;
    StubDomain domain(fabric, attr);
    Domain& inside = *domain_of(domain.handle);
    constexpr std::size_t kApart = (std::size_t{1} << kStripeShift) / kSlice;
    char* own = span(8 * kApart + 1, 1);
    char* hit = span(9 * kApart + 1, 1);
    domain.touch(hit, 8);
    auto low = reinterpret_cast<std::uintptr_t>(own);
    std::size_t own_stripe = stripe_of(low, low + kSlice);
#if RDMALLOC_CHECKED
    std::uint64_t takes = inside.stripes[own_stripe].takes;
#endif
    std::uint64_t whole_takes = inside.whole_takes;
    for (std::size_t i = 0; i < kStripes; ++i)
      if (i != own_stripe) inside.stripes[i].lock.lock();
    // If it waits for us, it waits for ever: the test's own limit ends that.
    std::thread another([&] {
      for (int i = 0; i < 10; ++i) {
        EXPECT_NE(domain.touch(own, 8), 0u);
        EXPECT_NE(domain.touch(own, 8), 0u);
        EXPECT_NE(domain.touch(hit, 8), 0u);
        EXPECT_EQ(rdmalloc_invalidate(domain.handle, own, 8, nullptr, nullptr), 1);
        rdmalloc_key key;
        EXPECT_EQ(rdmalloc_reg_key(domain.handle, own, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
        EXPECT_EQ(rdmalloc_invalidate(domain.handle, own, 8, nullptr, nullptr), 1);
      }
    });
    another.join();
    for (std::size_t i = 0; i < kStripes; ++i)
      if (i != own_stripe) inside.stripes[i].lock.unlock();
        // Get: look, reserve, enter; put: list; invalidate: close, account. A key is not listed by
        // a put.
#if RDMALLOC_CHECKED
    EXPECT_LE(inside.stripes[own_stripe].takes - takes, 10u * (6 + 5));
#endif
    EXPECT_EQ(inside.whole_takes, whole_takes);
    free_span(own);
    free_span(hit);
    expect_valid(domain);
  }
}

// Statistics walk through all registrations, and others go on: no more than one stripe is held
// meanwhile. Seen to fail with a walk under all locks.
TEST_F(Threads, statistics_hold_one_stripe_at_a_time) {
  using namespace rdmalloc::regcache;
  StubDomain domain(fabric);
  Domain& inside = *domain_of(domain.handle);
  constexpr std::size_t kApart = (std::size_t{1} << kStripeShift) / kSlice;
  std::vector<rdmalloc_reg*> held;
  for (std::size_t i = 0; i < 3; ++i) held.push_back(domain.get(span(i * kApart + 1, 1), 8));
  held.push_back(domain.get(span(4 * kApart - 1, 2), 2 * kSlice));  // a wide one
  domain.touch(spans[0], 8);
  std::uint64_t whole_takes = inside.whole_takes;
#if RDMALLOC_CHECKED
  std::uint64_t takes = inside.stripes[0].takes;
#endif
  rdmalloc_domain_counters counters = domain.counters();
  EXPECT_EQ(counters.in_use, 4u);
  EXPECT_EQ(counters.live_count, 4u);
  EXPECT_EQ(counters.hits, 1u);
  EXPECT_EQ(inside.whole_takes - whole_takes, 2u) << "for the sums, and for the wide ones";
#if RDMALLOC_CHECKED
  EXPECT_EQ(inside.stripes[0].takes - takes, 3u);
#endif
  std::size_t seen = 0;
  each_stripe_in_turn(inside, [&](Stripe& stripe) {
    bool is_wide = &stripe == &inside.wide();
    for (std::size_t i = 0; i < kStripes; ++i) {
      Stripe& other = inside.stripes[i];
      bool is_free = other.lock.try_lock();
      if (is_free) other.lock.unlock();
      EXPECT_EQ(is_free, !is_wide && &other != &stripe) << seen << ", " << i;
    }
    ++seen;
  });
  EXPECT_EQ(seen, kStripes + 1);
  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
}

// A registration in use is ended and the next made, from the first stripe to the last, as
// statistics walk: at most two live at once, and no more are said to be in use. Seen to fail
// when what was counted is given as it is.
TEST_F(Threads, no_more_are_in_use_than_live) {
  using namespace rdmalloc::regcache;
  StubDomain domain(fabric);
  constexpr std::size_t kApart = (std::size_t{1} << kStripeShift) / kSlice;
  std::vector<char*> one_of_each;
  for (std::size_t i = 0; i < kStripes - 1; ++i) one_of_each.push_back(span(i * kApart + 1, 1));
  std::atomic<bool> is_over{false};
  std::thread mover([&] {
    rdmalloc_reg* held = domain.get(one_of_each[0], 8);
    char* last = one_of_each[0];
    for (std::size_t i = 1; !is_over.load(std::memory_order_relaxed); ++i) {
      char* next = one_of_each[i % one_of_each.size()];
      rdmalloc_reg* more = domain.get(next, 8);
      rdmalloc_reg_put(held);
      EXPECT_EQ(rdmalloc_invalidate(domain.handle, last, 8, nullptr, nullptr), 1);
      held = more;
      last = next;
    }
    rdmalloc_reg_put(held);
  });
  std::uint64_t most = 0;
  for (int i = 0; i < 20'000; ++i) {
    rdmalloc_domain_counters counters = domain.counters();
    EXPECT_LE(counters.in_use, counters.live_count);
    most = std::max(most, counters.live_count);
  }
  is_over = true;
  mover.join();
  EXPECT_LE(most, 2u);
}

// What crosses a multiple of 4 MiB overlaps what lies within it, in any order of their making: an
// invalidation of either finds both, and so does a purge. Fails when a guard of a range does not
// look for wide ones, or a wide one goes to a stripe of those within.
TEST_F(Threads, what_crosses_stripes_is_found_from_each_of_them) {
  using namespace rdmalloc::regcache;
  constexpr std::size_t kApart = (std::size_t{1} << kStripeShift) / kSlice;
  fabric.ops.granularity = kPage;
  StubDomain domain(fabric);
  Domain& inside = *domain_of(domain.handle);
  char* wide = span(10 * kApart - 2, 2 * kApart);
  auto invalidates = [&](std::size_t slice) {
    EXPECT_NE(domain.touch(wide, 8), 0u);
    EXPECT_EQ(inside.wide().totals.count, 1u);
    std::uint64_t whole_takes = inside.whole_takes;
    EXPECT_EQ(rdmalloc_invalidate(domain.handle, wide + slice * kSlice, 8, nullptr, nullptr), 1)
        << slice;
    EXPECT_EQ(inside.whole_takes - whole_takes, 2u) << "to close it, and to account its end";
    EXPECT_FALSE(fabric.touches(wide, 8));
  };
  for (std::size_t slice : {std::size_t{0}, kApart / 2, kApart + 5, 2 * kApart - 1})
    invalidates(slice);
  rdmalloc_reg* held = domain.get(wide + kApart * kSlice, 8);
  EXPECT_EQ(rdmalloc_invalidate(domain.handle, wide, 8, nullptr, nullptr), 1);
  EXPECT_TRUE(fabric.touches(wide, 8)) << "until its put";
  rdmalloc_reg_put(held);
  EXPECT_FALSE(fabric.touches(wide, 8));
  EXPECT_NE(domain.touch(wide, 8), 0u);
  free_span(wide);
  EXPECT_EQ(fake::purge(10 * kApart + 3, 1), 0);
  EXPECT_EQ(fabric.live(), 0u);
  expect_valid(domain);
}

// Each thread makes, uses, frees and purges spans of its own, at addresses of its own, by keys and
// by references, in a domain whose limits force evictions by the others. No use may be stale.
// Fails when a purge does not look at references, or at what is sticky.
TEST_F(Threads, no_key_is_stale_whatever_the_others_do) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = 24;
  StubDomain domain(fabric, attr);
  std::atomic<int> wrong{0};
  std::atomic<std::uint64_t> uses{0};
  run([&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread) + 1);
    std::size_t home = 1000 * static_cast<std::size_t>(thread + 1);
    for (int step = 0; step < 3000; ++step) {
      std::size_t at = home + random() % 8 * 4, slices = 1 + random() % 4;
      char* block = fake::span(at, slices);
      std::size_t offset = random() % (slices * kSlice);
      rdmalloc_key key;
      rdmalloc_reg* reg = nullptr;
      bool is_counted = random() % 2 == 0;
      int error =
          is_counted
              ? rdmalloc_reg_get(domain.handle, block + offset, 1, RDMALLOC_ACCESS_LOCAL, &reg)
              : rdmalloc_reg_key(domain.handle, block + offset, 1, RDMALLOC_ACCESS_LOCAL, &key);
      if (error == 0) {
        if (is_counted) rdmalloc_reg_key_of(reg, &key);
        if (fabric.use(key, block + offset, 1) != StubFabric::Use::kRight) ++wrong;
        ++uses;
        rdmalloc_reg_put(reg);
      } else if (error != -ENOMEM) {
        ++wrong;
      }
      fake::free_span(block);
      if (random() % 4 == 0) fake::purge(home + random() % 8 * 4, 4);
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(uses, 10000u);
  EXPECT_LE(fabric.live(), 24u);
  expect_valid(domain);
}

// All threads want the same span at once, again and again: one registration in the end, the others'
// duplicates are gone. Fails when settle_made() does not look for a winner: several were in use.
TEST_F(Threads, a_race_for_one_span_leaves_one_registration) {
  StubDomain domain(fabric);
  std::atomic<int> wrong{0}, inside{0}, holders{0};
  // All of them are inside register_ at once: no thread waits for another's registrar.
  fabric.before_enter = [&](void*, std::size_t) {
    ++inside;
    while (inside < kThreads) std::this_thread::yield();
    return 0;
  };
  for (int round = 0; round < 200; ++round) {
    char* block = span(10, 2);
    inside = holders = 0;
    run([&](int) {
      rdmalloc_reg* reg = domain.get(block, 8);
      ++holders;
      while (holders < kThreads) std::this_thread::yield();
      rdmalloc_key key;
      rdmalloc_reg_key_of(reg, &key);
      if (fabric.use(key, block, 8) != StubFabric::Use::kRight) ++wrong;
      rdmalloc_reg_put(reg);
    });
    ASSERT_EQ(fabric.live(), 1u);
    ASSERT_EQ(inside, kThreads);
    free_span(block);
    ASSERT_EQ(fake::purge(10, 2), 0);
  }
  EXPECT_EQ(wrong, 0);
  auto counters = domain.counters();
  EXPECT_EQ(counters.registrations, counters.deregistrations);
  expect_valid(domain);
}

// Readers of one long-lived span against a thread that invalidates it: a get after an invalidation
// never returns what was registered before it. Fails when closing leaves the record open.
TEST_F(Threads, an_invalidated_registration_is_never_returned) {
  StubDomain domain(fabric);
  char* block = span(10, 1);
  std::atomic<std::uint64_t> floor{0};
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, completions{0};
  std::thread invalidator([&] {
    for (int i = 0; i < 2000; ++i) {
      std::uint64_t now = domain.touch(block, 8);
      auto done = [](void* arg) { ++*static_cast<std::atomic<int>*>(arg); };
      rdmalloc_invalidate(domain.handle, block, 8, done, &completions);
      floor = now;  // from here on nothing as old as this may be returned
    }
    stop = true;
  });
  run([&](int) {
    while (!stop) {
      std::uint64_t oldest = floor;
      rdmalloc_reg* reg = domain.get(block, 8);
      if (reg == nullptr) {
        ++wrong;
        continue;
      }
      rdmalloc_key key;
      rdmalloc_reg_key_of(reg, &key);
      if (key.generation <= oldest) ++wrong;
      if (fabric.use(key, block, 8) != StubFabric::Use::kRight) ++wrong;
      rdmalloc_reg_put(reg);
    }
  });
  invalidator.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(completions, 2000);
  expect_valid(domain);
}

// Memory that is released while in use: nothing crashes, deregistered exactly once, after the last
// put (the stub counts every wrong deregistration).
TEST_F(Threads, release_while_others_hold_it) {
  StubDomain domain(fabric);
  std::atomic<int> wrong{0};
  for (int round = 0; round < 200; ++round) {
    char* block = span(10, 1);
    std::vector<rdmalloc_reg*> held;
    for (int i = 0; i < kThreads; ++i) held.push_back(domain.get(block, 8));
    free_span(block);
    std::thread purger([&] {
      for (int i = 0; i < 10; ++i) fake::purge(10, 1);
    });
    run([&](int i) {
      rdmalloc_key key;
      rdmalloc_reg* mine = held[static_cast<std::size_t>(i)];
      rdmalloc_reg_key_of(mine, &key);
      if (fabric.use(key, block, 8) != StubFabric::Use::kRight) ++wrong;
      rdmalloc_reg_put(mine);
    });
    purger.join();
    fake::purge(10, 1);
    ASSERT_EQ(fabric.live(), 0u);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(fabric.calls, fabric.leaves);
}

// A purge is inside the registrar when its domain is closed: close waits, since the registrar may
// go with it. Fails when wait_for_drops() is left out.
TEST_F(Threads, closing_waits_for_a_purge_inside_the_registrar) {
  StubDomain domain(fabric);
  char* block = span(10, 1);
  domain.touch(block, 8);
  free_span(block);
  std::atomic<bool> is_inside{false}, may_leave{false};
  fabric.before_leave = [&](void*, std::size_t) {
    is_inside = true;
    while (!may_leave) std::this_thread::yield();
    return 0;
  };
  std::thread purger([&] { EXPECT_EQ(fake::purge(10, 1), 0); });
  while (!is_inside) std::this_thread::yield();
  std::thread closer([&] { EXPECT_EQ(domain.close(), 0); });
  // Time for a close that does not wait to show itself; one that does can't be early.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(fabric.closes, 0);
  may_leave = true;
  purger.join();
  closer.join();
  EXPECT_EQ(fabric.closes, 1);
  EXPECT_EQ(fabric.live(), 0u);
}

// A domain is closed while another thread gets and puts: what is idle is closed, what is held is
// -EBUSY, and nothing is taken for what another thread drops. Fails, by waiting for ever for a drop
// that no thread does, when close_all() looks at the holders after close_idle() has failed for
// them: twice of two times within a million rounds, so for TEST_SECONDS in regcache_churn_full.
TEST_F(Threads, closing_beside_a_put_ends) {
  std::vector<char*> blocks;
  for (std::size_t i = 0; i < 8; ++i) blocks.push_back(span(10 + i, 1));
  std::atomic<rdmalloc_domain*> open{nullptr};
  std::atomic<bool> is_inside{false}, must_stop{false};
  std::thread user([&] {
    while (!must_stop) {
      is_inside = true;
      rdmalloc_domain* domain = open;
      for (int i = 0; i < 100 && domain != nullptr; ++i) {
        rdmalloc_reg* reg = nullptr;
        const char* block = blocks[static_cast<std::size_t>(i) % blocks.size()];
        if (rdmalloc_reg_get(domain, block, 8, RDMALLOC_ACCESS_LOCAL, &reg) == 0)
          rdmalloc_reg_put(reg);
      }
      is_inside = false;
      // So that one that is closed is seen to be, and another may get its handle.
      while (domain != nullptr && open == nullptr && !must_stop) std::this_thread::yield();
    }
  });
  const char* seconds = getenv("TEST_SECONDS");
  auto end = std::chrono::steady_clock::now() +
             std::chrono::seconds(seconds != nullptr ? atoi(seconds) / 5 : 0);
  for (int round = 0; round < 3000 || std::chrono::steady_clock::now() < end; ++round) {
    StubDomain domain(fabric);
    open = domain.handle;
    for (char* block : blocks) domain.touch(block, 8);
    int error = -EBUSY;
    while (error == -EBUSY) error = domain.close();
    ASSERT_EQ(error, 0);
    ASSERT_EQ(fabric.live(), 0u);
    open = nullptr;
    while (is_inside) std::this_thread::yield();
  }
  must_stop = true;
  user.join();
}

// Opening, using and closing domains beside purges over the same spans. Fails when open_place()
// resets a domain without its lock (under TSan).
TEST_F(Threads, closing_a_domain_while_purges_run) {
  std::atomic<bool> stop{false};
  std::thread purger([&] {
    while (!stop)
      for (std::size_t thread = 0; thread < kThreads; ++thread) fake::purge(1000 * (thread + 1), 8);
  });
  run([&](int thread) {
    std::size_t home = 1000 * static_cast<std::size_t>(thread + 1) + 8;
    for (int i = 0; i < 200; ++i) {
      StubFabric own;
      StubDomain domain(own);
      char* block = fake::span(home, 8);
      domain.touch(block, 8 * kSlice);
      fake::free_span(block);
      std::thread purge([&] { fake::purge(home, 8); });
      EXPECT_EQ(domain.close(), 0);
      EXPECT_EQ(own.live(), 0u);
      EXPECT_EQ(own.errors, 0);
      purge.join();
    }
  });
  stop = true;
  purger.join();
}

}  // namespace
