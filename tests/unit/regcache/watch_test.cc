// RDMALLOC_FOREIGN=watch: foreign memory cached because the kernel tells when its pages go. Each
// test was seen to fail; the comment at each says how.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "alloc/os/userfault.h"
#include "tests/support/capture.h"
#include "tests/unit/regcache/watch_fixture.h"

namespace {

// A child forked while the descriptor of the question is open would keep it. Seen to fail (-EMFILE)
// with the question asked each time.
TEST_F(Watching, whether_it_could_is_asked_once) {
  set_mode("per-use");
  ASSERT_EQ(watching().error, 0);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::int64_t error = watching().error;
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(error, 0);
}

// Fails when find_or_make() does not plan it as cached, or take_found() refuses what is watched.
TEST_F(Watching, a_second_get_is_a_hit_and_calls_no_registrar) {
  StubDomain domain(fabric);
  ASSERT_EQ(watching().is_on, 1u);
  std::uint64_t generation = domain.touch(page(3) + 100, kPage);
  ASSERT_NE(generation, 0u);
  EXPECT_EQ(fabric.live(), 1u) << "kept after its put";
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(domain.touch(page(3), 2 * kPage), generation);
  EXPECT_EQ(fabric.calls, 1u);
  EXPECT_EQ(domain.counters().hits, 1000u);
  EXPECT_EQ(watching().watched, 1u);
  EXPECT_NE(domain.touch(page(3), kPage, RDMALLOC_ACCESS_REMOTE_READ), generation);
  EXPECT_EQ(fabric.live(), 1u) << "remote access ends at its put (I13)";
}

// What the kernel does to pages 4 and 5 in each way there is. Afterwards the addresses of page 4
// are other memory, and the next get must know. Fails when userfault_read() drops one kind of
// event, when mark_in() closes nothing, or when is_settled() does not compare what was applied.
TEST_F(Watching, whatever_takes_the_pages_ends_the_registration) {
  struct Way {
    const char* name;
    std::function<void()> take;
  };
  auto map_again = [&] { ASSERT_NE(map_pages(2, page(4), MAP_FIXED), nullptr); };
  const Way ways[] = {
      {"munmap",
       [&] {
         munmap(page(4), 2 * kPage);
         map_again();
       }},
      {"munmap of a part",
       [&] {
         munmap(page(4), kPage);
         map_again();
       }},
      {"munmap of much more",
       [&] {
         munmap(page(0), 20 * kPage);
         ASSERT_NE(map_pages(20, page(0), MAP_FIXED), nullptr);
       }},
      {"mmap over it", map_again},
      {"mremap away",
       [&] {
         void* moved = mremap(page(4), 2 * kPage, 8 * kPage, MREMAP_MAYMOVE);
         ASSERT_NE(moved, MAP_FAILED);
         map_again();
         munmap(moved, 8 * kPage);
       }},
      {"mremap over it",
       [&] {
         char* other = map_pages(2);
         ASSERT_EQ(mremap(other, 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, page(4)),
                   page(4));
       }},
      {"mremap to less",
       [&] {
         ASSERT_EQ(mremap(page(0), 6 * kPage, 4 * kPage, 0), page(0));
         map_again();
       }},
      {"MADV_DONTNEED", [&] { ASSERT_EQ(madvise(page(5), kPage, MADV_DONTNEED), 0); }},
  };
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    StubDomain domain(fabric);
    std::memset(page(4), 1, 2 * kPage);
    std::uint64_t generation = keep(domain, page(4), 2 * kPage);
    way.take();
    EXPECT_NE(domain.touch(page(4), 2 * kPage), generation);
    EXPECT_NE(domain.touch(page(4), 1), generation);
  }
}

// Fails when mark_in() does not run for the break, as above.
TEST_F(Watching, a_break_that_shrinks_ends_the_registration) {
  StubDomain domain(fabric);
  auto* base = static_cast<char*>(sbrk(16 * kPage));
  if (base == reinterpret_cast<char*>(-1)) GTEST_SKIP() << "SKIP: no room for the break";
  auto address = reinterpret_cast<std::uintptr_t>(base);
  char* at = base + (kPage - address % kPage) % kPage;
  std::uint64_t generation = keep(domain, at, 2 * kPage);
  ASSERT_NE(sbrk(-16 * static_cast<intptr_t>(kPage)), reinterpret_cast<void*>(-1));
  ASSERT_NE(sbrk(16 * kPage), reinterpret_cast<void*>(-1));
  EXPECT_NE(domain.touch(at, 2 * kPage), generation);
  ASSERT_NE(sbrk(-16 * static_cast<intptr_t>(kPage)), reinterpret_cast<void*>(-1));
}

// I7: no further call, and what was pinned goes all the same. Fails when help() does not drop.
TEST_F(Watching, I7_what_is_unmapped_is_deregistered_without_a_further_call) {
  StubDomain domain(fabric);
  std::uint64_t stale = watching().stale;
  for (std::size_t i = 0; i < kPages; ++i) keep(domain, page(i), kPage);
  munmap(map, kPages * kPage);
  wait_until_gone(map, kPages * kPage);
  EXPECT_EQ(fabric.leaves, fabric.calls) << "each once";
  EXPECT_EQ(watching().stale, stale + kPages);
  // A moment after it was deregistered, by the thread that did that.
  while (watching().watched != 0) std::this_thread::yield();
  map = map_quietly(kPages, kQuiet);
}

// The thread that drops what events have closed is in a call of the registrar. Seen to fail when an
// invalidation of all domains left to it what was deferred: completion waited for that call.
TEST_F(Watching, an_invalidation_drops_what_an_event_has_closed) {
  RegistrarGate gate;
  fabric.before_leave = [&](void* addr, std::size_t) { return addr == page(4) ? gate.pass() : 0; };
  StubDomain domain(fabric), other(another_fabric(fabric.ops.flags));
  keep(domain, page(4), kPage);
  keep(domain, page(20), kPage);
  munmap(page(4), kPage);
  gate.wait_until_inside();
  munmap(page(20), kPage);
  keep(other, page(40), kPage);  // applies the event
  EXPECT_TRUE(fabric.touches(page(20), kPage));
  int completions = 0;
  rdmalloc_invalidate(
      nullptr, page(20), kPage, [](void* count) { ++*static_cast<int*>(count); }, &completions);
  EXPECT_EQ(completions, 1);
  EXPECT_FALSE(fabric.touches(page(20), kPage));
  gate.open();
  wait_until_gone(page(4), kPage);
}

// Fails when a held one is dropped at the event, or not at its put.
TEST_F(Watching, what_is_held_while_it_is_unmapped_ends_with_its_last_put) {
  StubDomain domain(fabric);
  keep(domain, page(4), kPage);
  rdmalloc_reg* held = domain.get(page(4), kPage);
  ASSERT_NE(held, nullptr);
  rdmalloc_key before;
  rdmalloc_reg_key_of(held, &before);
  ASSERT_NE(map_pages(1, page(4), MAP_FIXED), nullptr);
  EXPECT_NE(keep(domain, page(4), kPage), before.generation);
  EXPECT_EQ(fabric.use(before, page(4), kPage), StubFabric::Use::kRight) << "registered yet";
  rdmalloc_reg_put(held);
  EXPECT_EQ(fabric.use(before, page(4), kPage), StubFabric::Use::kNoSuchKey);
}

// madvise tells before it takes the pages, so what is registered then may lose them unseen: such
// pages stay for each use until they are unmapped. Fails when mark() retires nothing, when begin()
// does not look, when the end of the mapping does not end it, or when first_kept() leaves it out.
TEST_F(Watching, memory_under_madvise_is_registered_per_use_until_unmapped) {
  StubDomain domain(fabric);
  for (int turn = 0; turn < 4; ++turn) {
    const int advice = turn % 2 == 0 ? MADV_DONTNEED : MADV_FREE;
    SCOPED_TRACE(turn);
    keep(domain, page(4), 4 * kPage);
    ASSERT_EQ(madvise(page(5), kPage, advice), 0);
    wait_until_gone(page(5), kPage);
    for (int i = 0; i < 20; ++i) {
      EXPECT_NE(domain.touch(page(4), 4 * kPage), 0u);
      EXPECT_FALSE(fabric.touches(page(5), kPage));
    }
    if (turn < 2) keep(domain, page(6), kPage);  // beside it
    EXPECT_EQ(watching().retired, 1u);
    ASSERT_NE(map_pages(4, page(4), MAP_FIXED), nullptr);
    keep(domain, page(20), kPage);  // so the event is applied
    ASSERT_EQ(watching().retired, 0u);
    std::uint64_t generation = keep(domain, page(4), 4 * kPage);
    EXPECT_EQ(domain.touch(page(4), 4 * kPage), generation);
    EXPECT_EQ(watching().retired, 0u);
  }
}

// Fails when disarm() leaves out what is still registered, or unregisters nothing.
TEST_F(Watching, pages_are_watched_as_long_as_one_registration_has_them) {
  StubDomain domain(fabric), other(another_fabric(fabric.ops.flags));
  keep(domain, page(4), 4 * kPage);
  std::uint64_t generation = keep(other, page(6), 2 * kPage);
  ASSERT_EQ(rdmalloc_domain_flush(domain.handle), 1);
  std::uint64_t events = watching().events;
  munmap(page(4), 2 * kPage);
  keep(other, page(20), kPage);  // all that was read is counted
  EXPECT_EQ(watching().events, events) << "watched no more";
  ASSERT_EQ(other.touch(page(6), 2 * kPage), generation);
  ASSERT_NE(map_pages(4, page(4), MAP_FIXED), nullptr);
  EXPECT_NE(other.touch(page(6), 2 * kPage), generation) << "the other's";
}

// Fails when first_kept() leaves out what is in flight: its pages would go unseen.
TEST_F(Watching, pages_being_registered_stay_watched_when_others_end) {
  StubDomain domain(fabric);
  keep(domain, page(6), 4 * kPage);
  fabric.before_enter = [&](void*, std::size_t) {
    EXPECT_EQ(rdmalloc_invalidate(domain.handle, page(9), kPage, nullptr, nullptr), 1);
    return 0;
  };
  std::uint64_t generation = domain.touch(page(4), 4 * kPage);
  fabric.before_enter = nullptr;
  EXPECT_EQ(domain.touch(page(4), 4 * kPage), generation) << "kept";
  ASSERT_NE(map_pages(1, page(7), MAP_FIXED), nullptr);
  EXPECT_NE(domain.touch(page(4), 4 * kPage), generation);
}

// Fails when mark() leaves the watching of what mremap() has moved: each unmapping would wait for a
// thread of ours.
TEST_F(Watching, pages_that_were_moved_are_watched_no_more) {
  StubDomain domain(fabric);
  keep(domain, page(4), kPage);
  ASSERT_EQ(mremap(page(4), kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, page(10)), page(10));
  keep(domain, page(20), kPage);
  std::uint64_t events = watching().events;
  munmap(page(10), kPage);
  keep(domain, page(21), kPage);
  EXPECT_EQ(watching().events, events);
}

// Fails when mark_in() does not look at what is in flight: it would be kept, over pages that went.
TEST_F(Watching, what_is_unmapped_while_it_is_being_registered_is_not_kept) {
  StubDomain domain(fabric);
  bool is_first = true;
  fabric.before_enter = [&](void*, std::size_t) {
    if (!is_first) return 0;
    is_first = false;
    EXPECT_NE(map_pages(1, page(4), MAP_FIXED), nullptr);
    keep(domain, page(20), kPage);  // so the event is applied
    return 0;
  };
  EXPECT_NE(domain.touch(page(4), kPage), 0u);
  EXPECT_FALSE(fabric.touches(page(4), kPage));
}

// Fails when make() does not end the watching after an error.
TEST_F(Watching, a_registration_that_fails_leaves_nothing_watched) {
  StubDomain domain(fabric);
  fabric.before_enter = [](void*, std::size_t) { return -EIO; };
  EXPECT_EQ(domain.touch(page(4), kPage), 0u);
  EXPECT_EQ(watching().watched, 0u);
  fabric.before_enter = {};
  std::uint64_t events = watching().events;
  ASSERT_NE(map_pages(1, page(4), MAP_FIXED), nullptr);
  keep(domain, page(20), kPage);
  EXPECT_EQ(watching().events, events);
}

// I6. Fails when is_private_anonymous() is not asked: pages of a file go by a call on the file.
TEST_F(Watching, I6_memory_that_cannot_be_watched_is_registered_for_each_use) {
  StubDomain domain(fabric);
  int file = memfd_create("watched", 0);
  ASSERT_EQ(ftruncate(file, 4 * 4096), 0);
  void* shared = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* copied = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  void* anonymous =
      mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  static char in_the_program[64];
  std::uint64_t refusals = watching().refusals;
  for (void* at : {shared, copied, anonymous}) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_NE(domain.touch(at, 4 * kPage), 0u);
      EXPECT_EQ(fabric.live(), 0u);
    }
    EXPECT_EQ(watching().refusals, refusals += 3);
    EXPECT_EQ(munmap(at, 4 * kPage), 0);
  }
  EXPECT_NE(domain.touch(in_the_program, sizeof in_the_program), 0u);
  // Half of it mapped: what the registrar makes of that is its own affair, and is not kept.
  munmap(page(10), kPage);
  domain.touch(page(9), 2 * kPage);
  EXPECT_FALSE(fabric.touches(page(9), kPage));
  ASSERT_NE(map_pages(1, page(10), MAP_FIXED), nullptr);
  ::close(file);
}

// Fails when the error of userfault_register() is not heeded.
TEST_F(Watching, I6_memory_another_userfaultfd_watches_is_registered_per_use) {
  StubDomain domain(fabric);
  int other = rdmalloc::os::userfault_open();
  ASSERT_GE(other, 0);
  ASSERT_EQ(
      rdmalloc::os::userfault_register(other, reinterpret_cast<std::uintptr_t>(page(4)), kPage), 0);
  EXPECT_NE(domain.touch(page(3), 3 * kPage), 0u);
  EXPECT_EQ(fabric.live(), 0u);
  ::close(other);
  keep(domain, page(3), 3 * kPage);
}

// More events than the ring holds, while a registrar keeps the helper. Fails when the reader waits,
// or overwrites what was not applied, and when what has had no event stays registered.
TEST_F(Watching, a_flood_that_is_not_applied_ends_watching_and_blocks_none) {
  // Before the threads are there, so that ThreadSanitizer knows who was first: it sees no order
  // where the kernel makes one.
  std::atomic<bool> is_inside{false}, may_leave{false};
  fabric.before_leave = [&](void* at, std::size_t) {
    if (at == page(4)) is_inside = true;
    while (at == page(4) && !may_leave) std::this_thread::yield();
    return 0;
  };
  StubDomain domain(fabric);
  keep(domain, page(4), kPage);
  std::uint64_t generation = keep(domain, page(8), 4 * kPage);
  keep(domain, page(40), kPage);
  munmap(page(4), kPage);
  while (!is_inside) std::this_thread::yield();
  rdmalloc_test::Capture capture;
  for (int i = 0; i < 17000; ++i) ASSERT_EQ(madvise(page(8), kPage, MADV_DONTNEED), 0);
  while (watching().is_on != 0) std::this_thread::yield();
  EXPECT_EQ(watching().error, -EOVERFLOW);
  EXPECT_NE(domain.touch(page(8), 4 * kPage), generation);
  may_leave = true;
  wait_until_gone(map, kPages * kPage);
  EXPECT_NE(domain.touch(page(20), kPage), 0u);
  EXPECT_EQ(fabric.live(), 0u) << "for each use from now on";
  EXPECT_NE(capture.end().find("too many events"), std::string::npos);
  ASSERT_NE(map_pages(1, page(4), MAP_FIXED), nullptr);
}

// I2, and why the reader takes no lock: a fabric that holds its lock while it registers and
// deregisters, and another thread that unmaps watched memory under the same lock. Fails, by
// hanging, when the reader deregisters.
TEST_F(Watching, I2_an_unmap_under_the_fabrics_lock_waits_for_no_holder_of_it) {
  StubDomain domain(fabric);
  std::mutex fabrics;
  auto under_the_lock = [&](void*, std::size_t) {
    std::lock_guard<std::mutex> guard(fabrics);
    std::this_thread::yield();
    return 0;
  };
  fabric.before_enter = under_the_lock;
  fabric.before_leave = under_the_lock;
  std::atomic<bool> stop{false};
  std::thread user([&] {
    std::minstd_rand random(3);
    while (!stop) domain.touch(page(32 + random() % 32), kPage);
  });
  for (int round = 0; round < 500; ++round) {
    char* first = page(static_cast<std::size_t>(round) % 16);
    char* second = first + 16 * kPage;
    keep(domain, first, kPage);
    keep(domain, second, kPage);
    // Two under one lock: a thread that wants it for the first keeps the second waiting.
    std::lock_guard<std::mutex> guard(fabrics);
    ASSERT_NE(map_pages(1, first, MAP_FIXED), nullptr);
    ASSERT_NE(map_pages(1, second, MAP_FIXED), nullptr);
  }
  stop = true;
  user.join();
}

// A registrar that keeps what it saw in memory: the stamp in the first word of each page. A get of
// pages whose stamp is another has found what was there before.
struct Stamps {
  Stamps() {
    ops.size = sizeof ops;
    ops.name = "stamps";
    ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
    ops.register_ = [](void*, void* addr, size_t, uint32_t, rdmalloc_key* key) {
      key->lkey = __atomic_load_n(static_cast<std::uint64_t*>(addr), __ATOMIC_RELAXED);
      return 0;
    };
    ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  }
  rdmalloc_registrar_ops ops = {};
};

// Threads fight for a few addresses: the thread that maps one owns it, stamps it, gets it a few
// times, and unmaps it; the next is waiting for the address and has it before that munmap has
// returned. Fails when is_settled() and catch_up() don't ask the kernel what is changing, or don't
// look at reading_.
TEST_F(Watching, I6_a_get_never_finds_what_was_mapped_there_before) {
  constexpr int kThreads = 4, kRounds = 4000;
  constexpr std::size_t kPlaces = 2;
  Stamps stamps;
  rdmalloc_domain* domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open(&stamps.ops, nullptr, nullptr, &domain), 0);
  char* places = map_quietly(2 * kPlaces, kQuiet + (1 << 20));
  ASSERT_NE(places, nullptr);
  munmap(places, 2 * kPlaces * kPage);
  std::atomic<std::uint64_t> next_stamp{1}, wrong{0}, kept{0};
  auto fight = [&](unsigned seed) {
    std::minstd_rand random(seed);
    for (int round = 0; round < kRounds;) {
      char* at = places + random() % kPlaces * 2 * kPage;
      char* mine = map_pages(1, at, MAP_FIXED_NOREPLACE);
      if (mine == nullptr) continue;
      if (mine != at) {
        munmap(mine, kPage);  // a kernel that takes the flag for a hint
        continue;
      }
      ++round;
      std::uint64_t stamp = next_stamp++, last = 0;
      __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), stamp, __ATOMIC_RELAXED);
      for (unsigned gets = random() % 4; gets > 0; --gets) {
        rdmalloc_reg* reg = nullptr;
        if (rdmalloc_reg_get(domain, at, kPage, RDMALLOC_ACCESS_LOCAL, &reg) != 0) std::abort();
        rdmalloc_key key;
        rdmalloc_reg_key_of(reg, &key);
        if (key.lkey != stamp) ++wrong;
        if (key.generation == last) ++kept;
        last = key.generation;
        rdmalloc_reg_put(reg);
      }
      munmap(at, kPage);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= kThreads; ++i) threads.emplace_back(fight, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_NE(kept, 0u) << "and some are hits";
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

// Fails when find_or_make() has the kernel watch what is adopted too.
TEST_F(Watching, what_is_adopted_is_cached_on_its_owners_word) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(4), 4 * kPage), 0);
  std::uint64_t generation = domain.touch(page(4), kPage);
  EXPECT_EQ(domain.touch(page(4), kPage), generation);
  EXPECT_EQ(watching().watched, 0u);
  EXPECT_EQ(rdmalloc_disown(page(4), 4 * kPage), 0);
  EXPECT_EQ(fabric.live(), 0u);
}

}  // namespace
