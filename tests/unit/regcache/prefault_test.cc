// rdmalloc_reg_prefault(): which pages are there, what is registered, by whom, and what is left
// when it fails. Over the real allocator. Each test was seen to fail; the comment at each says how.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "alloc/os/fault.h"
#include "alloc/os/memory.h"
#include "regcache/core/stripes.h"
#include "tests/support/capture.h"
#include "tests/unit/regcache/stub_fabric.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPage = 4096;

using Progress = rdmalloc_prefault_progress;

class Prefault : public ::testing::Test {
 protected:
  void TearDown() override {
    for (void* block : blocks) rdmalloc_free(block);
    rdmalloc_purge(0);  // so that the next test's blocks are not backed
    EXPECT_EQ(fabric.errors, 0) << "deregistered what is not there";
  }
  // A block without a page.
  char* block(std::size_t bytes) {
    blocks.push_back(rdmalloc_memalign(RDMALLOC_CHUNK_BYTES, bytes));
    return static_cast<char*>(blocks.back());
  }
  static rdmalloc_domain_attr pieces_of(std::size_t largest) {
    rdmalloc_domain_attr attr = {};
    attr.largest = largest;
    return attr;
  }
  static std::size_t pages_present(void* base, std::size_t bytes) {
    std::vector<unsigned char> state(bytes / kPage);
    EXPECT_EQ(mincore(base, bytes, state.data()), 0);
    return static_cast<std::size_t>(
        std::count_if(state.begin(), state.end(), [](unsigned char one) { return one & 1; }));
  }
  static int prefault(std::vector<rdmalloc_domain*> domains, std::vector<iovec> ranges,
                      unsigned threads, std::function<int(const Progress&)> progress = {}) {
    auto tell = [](const Progress* now, void* arg) {
      return (*static_cast<std::function<int(const Progress&)>*>(arg))(*now);
    };
    return rdmalloc_reg_prefault(domains.data(), domains.size(), ranges.data(), ranges.size(),
                                 threads, progress ? +tell : nullptr, &progress);
  }
  static void expect_whole(StubDomain& domain) {
    EXPECT_EQ(domain.counters().in_use, 0u);
    auto* inside = rdmalloc::regcache::domain_of(domain.handle);
    rdmalloc::regcache::WholeGuard guard(*inside);
    EXPECT_TRUE(rdmalloc::regcache::domain_is_valid(*inside));
    EXPECT_EQ(rdmalloc::regcache::domain_totals(*inside).reserved_count, 0u);
  }
  // Lets `most` threads into the registrar at once, no fewer: none leaves before all are in.
  static std::function<int(void*, std::size_t)> gate(std::atomic<unsigned>& inside, unsigned most) {
    return [&inside, most](void*, std::size_t) {
      ++inside;
      while (inside < most) std::this_thread::yield();
      return 0;
    };
  }

  StubFabric fabric;
  std::vector<void*> blocks;
};

// Fails when back_next() or register_next() leaves out a range's last step or piece, and when
// put_all() keeps one.
TEST_F(Prefault, every_page_is_there_and_every_later_registration_is_a_hit) {
  StubFabric other_fabric;
  StubDomain whole(fabric), pieces(other_fabric, pieces_of(16 * kMiB));
  std::vector<iovec> ranges;
  for (std::size_t bytes : {64 * kMiB, 40 * kMiB, 5 * kMiB})
    ranges.push_back({block(bytes), bytes});
  for (const iovec& range : ranges) ASSERT_EQ(pages_present(range.iov_base, range.iov_len), 0u);
  memset(ranges[0].iov_base, 7, kPage);
  ASSERT_EQ(prefault({whole.handle, pieces.handle}, ranges, 3), 0);
  for (const iovec& range : ranges)
    EXPECT_EQ(pages_present(range.iov_base, range.iov_len), range.iov_len / kPage);
  EXPECT_EQ(static_cast<char*>(ranges[0].iov_base)[kPage - 1], 7);
  EXPECT_EQ(fabric.live(), 3u);
  EXPECT_EQ(other_fabric.live(), 4u + 3u + 1u);
  EXPECT_EQ(whole.counters().prefaulted, 3u);
  EXPECT_EQ(pieces.counters().prefaulted, 8u);
  std::uint64_t calls = fabric.calls + other_fabric.calls;
  rdmalloc_key key;
  for (const iovec& range : ranges) {
    auto* base = static_cast<char*>(range.iov_base);
    EXPECT_NE(whole.touch(base, range.iov_len), 0u);
    EXPECT_EQ(
        rdmalloc_reg_key(pieces.handle, base + range.iov_len - 1, 1, RDMALLOC_ACCESS_LOCAL, &key),
        0);
    for (std::size_t at = 0; at < range.iov_len; at += kMiB)
      EXPECT_NE(pieces.touch(base + at, kMiB), 0u);
  }
  EXPECT_EQ(fabric.calls + other_fabric.calls, calls) << "not all of it was registered";
  expect_whole(whole);
  expect_whole(pieces);
  // Again: there is nothing left to be made.
  ASSERT_EQ(prefault({whole.handle, pieces.handle}, ranges, 2), 0);
  EXPECT_EQ(fabric.calls + other_fabric.calls, calls);
}

// Fails when the registrations are not kept afterwards, or not given up to eviction.
TEST_F(Prefault, what_it_made_is_idle_and_evicted_when_others_need_the_room) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = 4;
  StubDomain domain(fabric, attr);
  std::vector<iovec> ranges;
  for (int i = 0; i < 4; ++i) ranges.push_back({block(2 * kMiB), 2 * kMiB});
  ASSERT_EQ(prefault({domain.handle}, ranges, 1), 0);
  EXPECT_EQ(fabric.live(), 4u);
  EXPECT_NE(domain.touch(block(2 * kMiB), 8), 0u);
  EXPECT_EQ(domain.counters().evictions, 1u);
  EXPECT_FALSE(fabric.touches(ranges[0].iov_base, 1)) << "the one put first";
}

// As many threads as asked are in the registrar at once, none more. Fails when start_helpers()
// starts one fewer (the gate then never opens, until the test's time is up), or one more.
TEST_F(Prefault, as_many_threads_register_at_once_as_were_asked_for) {
  for (unsigned threads : {1u, 2u, 5u}) {
    StubDomain domain(fabric, pieces_of(8 * kMiB));
    std::atomic<unsigned> inside{0};
    std::mutex mutex;
    std::set<std::thread::id> ids;
    auto wait = gate(inside, threads);
    fabric.before_enter = [&](void* addr, std::size_t length) {
      {
        std::lock_guard<std::mutex> guard(mutex);
        ids.insert(std::this_thread::get_id());
      }
      return wait(addr, length);
    };
    unsigned told = 0;
    ASSERT_EQ(prefault({domain.handle}, {{block(48 * kMiB), 48 * kMiB}}, threads,
                       [&](const Progress& now) { return told = now.threads, 0; }),
              0);
    fabric.before_enter = nullptr;
    EXPECT_EQ(ids.size(), threads);
    EXPECT_EQ(told, threads);
    EXPECT_EQ(ids.count(std::this_thread::get_id()), 1u) << "the caller is one of them";
  }
}

// Fails when plan_wide() does not heed the limit, or when a piece is cut where the range begins and
// not where its page does.
TEST_F(Prefault, pages_are_registered_where_more_may_not_be) {
  rdmalloc_domain_attr attr = {};
  attr.max_bytes = kMiB;
  StubDomain bounded(fabric, attr), pieces(fabric, pieces_of(8 * kPage));
  char* of_more = block(4 * kMiB);
  EXPECT_EQ(prefault({bounded.handle}, {{of_more + kPage, kPage}}, 1), 0);
  EXPECT_EQ(fabric.bytes(), kPage);
  alignas(4096) static char foreign[9 * kPage];
  ASSERT_EQ(rdmalloc_adopt(foreign, sizeof foreign), 0);
  EXPECT_EQ(prefault({pieces.handle}, {{foreign + 8, 8 * kPage}}, 1), 0);
  EXPECT_EQ(fabric.bytes(), 10 * kPage);
  EXPECT_EQ(rdmalloc_disown(foreign, sizeof foreign), 0);
}

// Fails when threads_for() does not look at the affinity.
TEST_F(Prefault, no_number_means_as_many_as_the_affinity_allows) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  StubDomain domain(fabric, pieces_of(kMiB));
  for (bool is_one : {false, true}) {
    if (is_one) {
      CPU_ZERO(&one);
      for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    }
    unsigned told = 0;
    EXPECT_EQ(prefault({domain.handle}, {{block(256 * kMiB / 4), 256 * kMiB / 4}}, 0,
                       [&](const Progress& now) { return told = now.threads, 0; }),
              0);
    EXPECT_EQ(told, is_one ? 1u : std::min(64u, static_cast<unsigned>(CPU_COUNT(&before))));
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

// Fails when a helper takes the units of a registrar without ANY_THREAD.
TEST_F(Prefault, a_registrar_for_the_callers_thread_is_called_on_it) {
  StubFabric bound(RDMALLOC_REGISTRAR_SYNC_DEREG);
  StubDomain any(fabric, pieces_of(4 * kMiB)), domain(bound, pieces_of(4 * kMiB));
  std::atomic<int> elsewhere{0};
  auto caller = std::this_thread::get_id();
  bound.before_enter = [&](void*, std::size_t) {
    if (std::this_thread::get_id() != caller) ++elsewhere;
    // Until the helpers have done all that is for them, or one has come here.
    while (elsewhere == 0 && fabric.live() < 16) std::this_thread::yield();
    return 0;
  };
  ASSERT_EQ(prefault({any.handle, domain.handle}, {{block(64 * kMiB), 64 * kMiB}}, 4), 0);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(bound.live(), 16u);
  EXPECT_EQ(fabric.live(), 16u);
}

// Fails when tell() is called by helpers, when the last call is left out, or when a lock is held in
// it (a checked build aborts).
TEST_F(Prefault, I2_progress_runs_on_the_calling_thread_from_none_to_all) {
  StubDomain domain(fabric, pieces_of(8 * kMiB));
  char* memory = block(96 * kMiB);
  auto caller = std::this_thread::get_id();
  std::vector<Progress> all;
  int elsewhere = 0;
  ASSERT_EQ(prefault({domain.handle}, {{memory, 96 * kMiB}}, 3,
                     [&](const Progress& now) {
                       if (std::this_thread::get_id() != caller) ++elsewhere;
                       all.push_back(now);
                       // It may call into the cache. In this order: more may be registered
                       // meanwhile.
                       std::uint64_t known = domain.counters().live_count;
                       EXPECT_LE(known, fabric.live());
                       // The helpers do the rest, and the caller finds nothing to wait for.
                       if (now.registered != 0)
                         while (fabric.live() < 12) std::this_thread::yield();
                       for (int i = 0; i < 100; ++i) std::this_thread::yield();
                       return 0;
                     }),
            0);
  EXPECT_EQ(elsewhere, 0);
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all.front().backed_bytes + all.front().registered, 0u);
  EXPECT_EQ(all.back().backed_bytes, 96 * kMiB);
  EXPECT_EQ(all.back().registered, 12u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].size, sizeof(Progress));
    EXPECT_EQ(all[i].bytes, 96 * kMiB);
    EXPECT_EQ(all[i].registrations, 12u);
    EXPECT_TRUE(all[i].registered == 0 || all[i].backed_bytes == all[i].bytes) << "pages first";
    if (i != 0) {
      EXPECT_GE(all[i].backed_bytes + all[i].registered,
                all[i - 1].backed_bytes + all[i - 1].registered);
    }
  }
}

// Fails when is_over() is not asked between two pieces. With one thread the callback is called
// before, after each of 4 steps, and after each of 16 pieces.
TEST_F(Prefault, a_callback_may_cancel_anywhere_and_the_next_call_goes_on) {
  for (int at = 0; at < 20; ++at) {
    StubDomain domain(fabric, pieces_of(4 * kMiB));
    char* memory = block(64 * kMiB);
    int calls = 0;
    std::uint64_t asked = fabric.calls;
    EXPECT_EQ(prefault({domain.handle}, {{memory, 64 * kMiB}}, 1,
                       [&](const Progress&) { return calls++ == at ? 1 : 0; }),
              -ECANCELED);
    EXPECT_EQ(calls, at + 1) << "told after it was cancelled";
    EXPECT_EQ(pages_present(memory, 64 * kMiB),
              static_cast<std::size_t>(std::min(at, 4)) * 16 * kMiB / kPage);
    EXPECT_EQ(fabric.calls - asked, static_cast<std::uint64_t>(std::max(at - 4, 0)));
    expect_whole(domain);
    EXPECT_EQ(prefault({domain.handle}, {{memory, 64 * kMiB}}, 1), 0);
    EXPECT_EQ(fabric.calls - asked, 16u) << "made some of them twice";
    EXPECT_EQ(domain.close(), 0);
    rdmalloc_free(memory);
    blocks.pop_back();
    rdmalloc_purge(0);
  }
}

// The same with helpers, who stop after what each of them is doing. Fails when one is not joined.
TEST_F(Prefault, cancelling_stops_the_helpers) {
  StubDomain domain(fabric, pieces_of(kMiB));
  char* memory = block(64 * kMiB);
  bool is_stopped = false;
  std::atomic<int> late{0};
  std::atomic<bool> has_returned{false};
  fabric.before_enter = [&](void*, std::size_t) { return has_returned ? ++late : 0; };
  int error = prefault({domain.handle}, {{memory, 64 * kMiB}}, 4, [&](const Progress& now) {
    if (now.registered != 0) is_stopped = true;
    return is_stopped ? 1 : 0;
  });
  has_returned = true;
  EXPECT_EQ(error, -ECANCELED);
  EXPECT_EQ(domain.counters().live_count, fabric.live());
  EXPECT_EQ(late, 0);
  expect_whole(domain);
  EXPECT_EQ(domain.close(), 0);
}

// Fails when register_next() goes on after an error, or leaves the failed unit as held.
TEST_F(Prefault, one_refused_piece_is_the_error_and_leaves_the_others_whole) {
  StubFabric second;
  StubDomain domain(fabric, pieces_of(4 * kMiB)), other(second, pieces_of(4 * kMiB));
  char* memory = block(64 * kMiB);
  fabric.before_enter = [&](void* addr, std::size_t) {
    return addr == memory + 20 * kMiB ? -EPERM : 0;
  };
  rdmalloc_test::Capture capture;
  EXPECT_EQ(prefault({domain.handle, other.handle}, {{memory, 64 * kMiB}}, 2), -EPERM);
  std::string message = capture.end();
  EXPECT_NE(message.find("stub refused 4194304 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find("of 32 registrations are made"), std::string::npos) << message;
  EXPECT_FALSE(fabric.touches(memory + 20 * kMiB, 4 * kMiB));
  EXPECT_EQ(domain.counters().refusals, 1u);
  EXPECT_EQ(domain.counters().live_count, fabric.live());
  EXPECT_EQ(other.counters().live_count, second.live());
  expect_whole(domain);
  expect_whole(other);
  // All that is there is right, and what is missing comes with the next call.
  for (StubFabric* one : {&fabric, &second})
    for (const StubFabric::Entry& entry : one->entries()) EXPECT_EQ(entry.length, 4 * kMiB);
  fabric.before_enter = nullptr;
  std::uint64_t asked = fabric.calls + second.calls;
  std::uint64_t live = fabric.live() + second.live();
  EXPECT_EQ(prefault({domain.handle, other.handle}, {{memory, 64 * kMiB}}, 2), 0);
  EXPECT_EQ(fabric.calls + second.calls - asked, 32 - live);
}

// Fails when check_room() counts idle registrations as in the way, or held ones as room.
TEST_F(Prefault, what_exceeds_the_limits_is_refused_before_anything_is_done) {
  rdmalloc_domain_attr attr = pieces_of(2 * kMiB);
  attr.max_bytes = 16 * kMiB;
  attr.max_count = 7;
  StubDomain domain(fabric, attr);
  char* other = block(4 * kMiB);
  rdmalloc_reg* held = domain.get(other, 2 * kMiB);
  domain.touch(other + 2 * kMiB, 2 * kMiB);
  std::uint64_t calls = fabric.calls;
  char* memory = block(32 * kMiB);
  struct Case {
    std::size_t bytes;
    const char* message;
  };
  for (Case one : {Case{32 * kMiB, "33554432 bytes to register asked; stub leaves 14680064"},
                   Case{14 * kMiB, "7 registrations asked; stub leaves 6"}}) {
    rdmalloc_test::Capture capture;
    EXPECT_EQ(prefault({domain.handle}, {{memory, one.bytes}}, 2), -ENOMEM);
    std::string message = capture.end();
    EXPECT_NE(message.find(one.message), std::string::npos) << message;
    EXPECT_EQ(fabric.calls, calls);
    EXPECT_EQ(pages_present(memory, one.bytes), 0u);
  }
  // What is held and serves a range already needs no room.
  EXPECT_EQ(prefault({domain.handle}, {{memory, 12 * kMiB}, {other, 2 * kMiB}}, 2), 0);
  EXPECT_EQ(domain.counters().evictions, 1u);
  EXPECT_TRUE(fabric.touches(other, 2 * kMiB));
  rdmalloc_reg_put(held);
}

// More than the machine has. Fails when plan_prefault() does not ask for it: the kernel would kill.
TEST_F(Prefault, more_than_the_memory_there_is_is_refused_with_both_numbers) {
  const std::size_t much = (rdmalloc::os::memory_limit_bytes() / kMiB + 1) * kMiB;
  StubDomain domain(fabric);
  auto* memory = static_cast<char*>(
      mmap(nullptr, much, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(rdmalloc_adopt(memory, much), 0);
  rdmalloc_test::Capture capture;
  EXPECT_EQ(prefault({domain.handle}, {{memory, much}}, 1), -ENOMEM);
  std::string message = capture.end();
  EXPECT_NE(message.find(std::to_string(much) + " bytes asked; the memory there is leaves " +
                         std::to_string(rdmalloc::os::memory_limit_bytes())),
            std::string::npos)
      << message;
  EXPECT_EQ(fabric.calls, 0u);
  EXPECT_EQ(rdmalloc_disown(memory, much), 0);
  munmap(memory, much);
}

// Another thread takes the room while it runs. Fails when what is had is not held: it would be
// evicted by the next piece, and the call would say that all is well.
TEST_F(Prefault, room_taken_by_others_meanwhile_is_an_error_not_an_eviction) {
  rdmalloc_domain_attr attr = pieces_of(4 * kMiB);
  attr.max_count = 8;
  StubDomain domain(fabric, attr);
  char* memory = block(32 * kMiB);
  char* other = block(8 * kMiB);
  std::vector<rdmalloc_reg*> held;
  bool has_begun = false;
  EXPECT_EQ(prefault({domain.handle}, {{memory, 32 * kMiB}}, 1,
                     [&](const Progress& now) {
                       if (now.registered == 2 && !has_begun) {
                         has_begun = true;
                         held = {domain.get(other, 8), domain.get(other + 4 * kMiB, 8)};
                       }
                       return 0;
                     }),
            -ENOMEM);
  EXPECT_EQ(domain.counters().evictions, 0u);
  EXPECT_EQ(fabric.live(), 8u);
  for (rdmalloc_reg* reg : held) {
    ASSERT_NE(reg, nullptr);
    rdmalloc_reg_put(reg);
  }
  expect_whole(domain);
}

// Fails when foreign memory is taken that was not adopted, or when a part of the call was done
// before that was seen.
TEST_F(Prefault, I6_foreign_memory_only_when_it_is_adopted) {
  StubDomain domain(fabric, pieces_of(kMiB));
  auto* foreign = static_cast<char*>(
      mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char* owned = block(2 * kMiB);
  std::vector<iovec> ranges = {{owned, 2 * kMiB}, {foreign, 4 * kMiB}};
  EXPECT_EQ(prefault({domain.handle}, ranges, 1), -EPERM);
  EXPECT_EQ(fabric.calls, 0u);
  EXPECT_EQ(pages_present(owned, 2 * kMiB), 0u);
  ASSERT_EQ(rdmalloc_adopt(foreign, 4 * kMiB), 0);
  EXPECT_EQ(prefault({domain.handle}, ranges, 2), 0);
  EXPECT_EQ(pages_present(foreign, 4 * kMiB), 4 * kMiB / kPage);
  EXPECT_EQ(fabric.live(), 6u);
  EXPECT_NE(domain.touch(foreign + kMiB, kMiB), 0u);
  EXPECT_EQ(fabric.calls, 6u);
  ASSERT_EQ(rdmalloc_disown(foreign, 4 * kMiB), 0);
  // Read-only: no page can be backed for writing, nor need be. Fails (crashes, on a kernel before
  // 5.14) when it is written to.
  ASSERT_EQ(mprotect(foreign, 4 * kMiB, PROT_READ), 0);
  ASSERT_EQ(rdmalloc_adopt(foreign, 4 * kMiB), 0);
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kPopulate, 1);
  EXPECT_EQ(prefault({domain.handle}, {{foreign, 4 * kMiB}}, 1), 0);
  EXPECT_EQ(fabric.live(), 6u);
  ASSERT_EQ(rdmalloc_disown(foreign, 4 * kMiB), 0);
  munmap(foreign, 4 * kMiB);
}

// Fails when populate() does nothing where the kernel lacks MADV_POPULATE_WRITE.
TEST_F(Prefault, a_kernel_without_populate_backs_the_pages_all_the_same) {
  StubDomain domain(fabric);
  char* memory = block(8 * kMiB);
  memory[3 * kPage + 5] = 42;
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kPopulate, 1);
  EXPECT_EQ(prefault({domain.handle}, {{memory, 8 * kMiB}}, 1), 0);
  EXPECT_EQ(pages_present(memory, 8 * kMiB), 8 * kMiB / kPage);
  EXPECT_EQ(memory[3 * kPage + 5], 42);
}

// Fails when start_helpers() gives up, or waits for a helper that is not there.
TEST_F(Prefault, where_no_thread_can_be_created_the_caller_does_it_all) {
  StubDomain domain(fabric, pieces_of(4 * kMiB));
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kThreadCreate, 1);
  unsigned told = 0;
  EXPECT_EQ(prefault({domain.handle}, {{block(64 * kMiB), 64 * kMiB}}, 4,
                     [&](const Progress& now) { return told = now.threads, 0; }),
            0);
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kThreadCreate, 0);
  EXPECT_EQ(told, 1u);
  EXPECT_EQ(fabric.live(), 16u);
}

// Small blocks of one slab: one registration, however many of them are named. Fails when
// settle_units() does not join them: the limit of one would be exceeded.
TEST_F(Prefault, blocks_of_one_slab_are_one_registration) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = 2;
  StubDomain domain(fabric, attr);
  std::vector<iovec> ranges;
  std::set<void*> slabs;
  for (int i = 0; i < 60; ++i) {
    blocks.push_back(rdmalloc_malloc(512));
    ranges.push_back({blocks.back(), 512});
    rdmalloc_range range = {};
    range.size = sizeof range;
    ASSERT_EQ(rdmalloc_range_of(blocks.back(), &range), 0);
    slabs.insert(range.base);
  }
  ASSERT_LE(slabs.size(), 2u);
  EXPECT_EQ(prefault({domain.handle}, ranges, 2), 0);
  EXPECT_EQ(fabric.live(), slabs.size());
}

// Fails when the others' pages are backed first: nothing is done for a device that is gone.
TEST_F(Prefault, a_lost_domain_among_others_is_refused_before_any_work) {
  StubFabric dead;
  StubDomain domain(fabric), lost(dead);
  rdmalloc_test::Capture capture;
  ASSERT_EQ(rdmalloc_domain_lost(lost.handle), 0);
  capture.end();
  char* memory = block(2 * kMiB);
  EXPECT_EQ(prefault({domain.handle, lost.handle}, {{memory, 2 * kMiB}}, 1), -ENODEV);
  EXPECT_EQ(pages_present(memory, 2 * kMiB), 0u);
  EXPECT_EQ(fabric.calls, 0u);
}

// Fails when a bad argument is found after something was done.
TEST_F(Prefault, bad_arguments_are_refused) {
  StubDomain domain(fabric);
  char* memory = block(2 * kMiB);
  EXPECT_EQ(prefault({}, {{memory, 1}}, 1), -EINVAL);
  EXPECT_EQ(prefault({nullptr}, {{memory, 1}}, 1), -EINVAL);
  EXPECT_EQ(prefault({domain.handle}, {{memory, 0}}, 1), -EINVAL);
  EXPECT_EQ(prefault({domain.handle}, {{nullptr, 1}}, 1), -EINVAL);
  EXPECT_EQ(prefault({domain.handle}, {{memory, SIZE_MAX}}, 1), -EINVAL);
  EXPECT_EQ(prefault({domain.handle}, {{memory, 8 * kMiB}}, 1), -EFAULT) << "more than the block";
  EXPECT_EQ(prefault({domain.handle}, {}, 1), 0) << "no memory is none to register";
  EXPECT_EQ(fabric.calls, 0u);
  EXPECT_EQ(pages_present(memory, 2 * kMiB), 0u);
}

// Seen to fail when a join of helpers was where the thread ended: a quiesce waited for a call that
// was under way for ever.
TEST_F(Prefault, a_canceled_thread_ends_behind_the_call) {
  StubDomain domain(fabric, pieces_of(kMiB));
  iovec range = {block(8 * kMiB), 8 * kMiB};
  std::atomic<bool> is_canceled{false};
  std::atomic<unsigned> inside{0};
  fabric.before_enter = [&](void*, std::size_t) {
    ++inside;
    while (!is_canceled) std::this_thread::yield();
    return 0;
  };
  struct Call {
    rdmalloc_domain* domain;
    iovec range;
    std::atomic<int> result{1};
  } call{domain.handle, range};
  pthread_t thread;
  auto body = [](void* arg) -> void* {
    auto& mine = *static_cast<Call*>(arg);
    mine.result = rdmalloc_reg_prefault(&mine.domain, 1, &mine.range, 1, 4, nullptr, nullptr);
    for (;;) pthread_testcancel();
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, body, &call), 0);
  while (inside == 0) std::this_thread::yield();
  pthread_cancel(thread);
  is_canceled = true;
  void* end = nullptr;
  pthread_join(thread, &end);
  EXPECT_EQ(end, PTHREAD_CANCELED);
  EXPECT_EQ(call.result, 0);
  EXPECT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), 0);
}

// Many calls over the same blocks at once, in domains that have room for half of it, with purges.
// TSan runs it too.
TEST_F(Prefault, calls_beside_each_other_leave_the_books_right) {
  rdmalloc_domain_attr attr = pieces_of(2 * kMiB);
  attr.max_count = 24;
  StubDomain domain(fabric, attr);
  std::vector<char*> mine;
  for (int i = 0; i < 4; ++i) mine.push_back(block(16 * kMiB));
  std::atomic<int> wrong{0}, done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        char* memory = mine[static_cast<std::size_t>((i + round) % 4)];
        int error = prefault({domain.handle}, {{memory, 16 * kMiB}}, 2);
        if (error == 0) ++done;
        if (error != 0 && error != -ENOMEM) ++wrong;
        void* passing = rdmalloc_malloc(4 * kMiB);
        if (round % 4 == 0) prefault({domain.handle}, {{passing, 4 * kMiB}}, 2);
        rdmalloc_free(passing);
        if (round % 4 == 1) rdmalloc_purge(0);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(done, 0);
  EXPECT_LE(fabric.live(), 24u);
  expect_whole(domain);
}

#if !defined(__SANITIZE_THREAD__)  // a child of several threads can't go on under it
// Fails when the child waits for its parent's helpers: the test's time is up.
TEST_F(Prefault, I11_a_child_forked_in_the_callback_is_told_so) {
  StubDomain domain(fabric, pieces_of(4 * kMiB));
  char* memory = block(64 * kMiB);
  int status = -1;
  bool is_child = false, has_forked = false;
  int result = prefault({domain.handle}, {{memory, 64 * kMiB}}, 3, [&](const Progress& now) {
    if (now.backed_bytes == 0 || has_forked) return 0;
    has_forked = true;
    pid_t child = fork();
    is_child = child == 0;
    if (!is_child) waitpid(child, &status, 0);
    return 0;
  });
  if (is_child) _exit(result == -ECHILD ? 17 : 1);
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 17) << status;
  EXPECT_EQ(fabric.live(), 16u);
}
#endif

}  // namespace
