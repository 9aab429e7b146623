// rdmalloc_quiesce() and rdmalloc_resume() with registered heaps and pools, with domains that are
// lost meanwhile, and on several threads or canceled ones.
#include <errno.h>
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/regcache/quiesce_fixture.h"

namespace {

using testing::ElementsAre;

TEST_F(Quiesce, registered_heaps_have_their_keys_again) {
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 6 * kMiB);
  ASSERT_NE(heap, nullptr);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 100 * kKiB));
  rdmalloc_key before = {}, after = {};
  ASSERT_EQ(rdmalloc_heap_key(heap, 0, block, 100, &before), 0);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(rdmalloc_heap_key(heap, 0, block, 100, &after), -EAGAIN);
  EXPECT_EQ(region(heap, 0).keys->generation, 0u);
  EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), -EAGAIN);
  // malloc in it goes on.
  void* meanwhile = rdmalloc_heap_malloc(heap, 200 * kKiB);
  EXPECT_NE(meanwhile, nullptr);
  ASSERT_EQ(rdmalloc_resume(), 0);
  ASSERT_EQ(rdmalloc_heap_key(heap, 0, meanwhile, 100, &after), 0);
  EXPECT_TRUE(reaches(fabric, after, meanwhile, 100));
  EXPECT_GT(after.generation, before.generation);
  // By its remote rights too, which only the heap's own registration has.
  ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, 100, kRemote, &after), 0);
  EXPECT_TRUE(reaches(fabric, after, block, 100));
  EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
}

TEST_F(Quiesce, pools_have_their_keys_again_in_the_same_place) {
  for (std::uint32_t access : {RDMALLOC_ACCESS_LOCAL, kRemote}) {
    StubDomain domain(fabric, attr);
    rdmalloc_pool_attr of_pool = {};
    of_pool.size = sizeof of_pool;
    of_pool.small_count = 20;
    of_pool.large_count = 2;
    of_pool.access = access;
    rdmalloc_pool* pool = nullptr;
    ASSERT_EQ(rdmalloc_pool_create(&domain.handle, 1, &of_pool, &pool), 0);
    std::size_t live = fabric.live();
    rdmalloc_buffer* buffer = nullptr;
    ASSERT_EQ(rdmalloc_pool_get(pool, 100, &buffer), 0);
    const rdmalloc_key* place = buffer->keys;
    std::uint64_t generation = place->generation;
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(fabric.live(), 0u);
    EXPECT_EQ(place->generation, 0u);
    ASSERT_EQ(rdmalloc_resume(), 0);
    EXPECT_EQ(fabric.live(), live);
    EXPECT_EQ(buffer->keys, place);
    EXPECT_GT(place->generation, generation);
    EXPECT_EQ(fabric.use(*place, buffer->addr, buffer->length), StubFabric::Use::kRight);
    EXPECT_EQ(rdmalloc_pool_put(pool, buffer), 0);
    EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
    domain.close();
    EXPECT_EQ(fabric.live(), 0u);
  }
}

TEST_F(Quiesce, while_quiesced_closing_and_destroying_work_making_does_not) {
  StubDomain domain(fabric, attr), refused(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  rdmalloc_pool* pool = nullptr;
  rdmalloc_pool_attr of_pool = small_pool();
  ASSERT_EQ(rdmalloc_pool_create(&domain.handle, 1, &of_pool, &pool), 0);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  rdmalloc_domain* opened = nullptr;
  EXPECT_EQ(rdmalloc_domain_open(&fabric.ops, &fabric, nullptr, &opened), -EAGAIN);
  EXPECT_EQ(make({domain.handle}, 2 * kMiB), nullptr);
  EXPECT_EQ(last_error, -EAGAIN);
  rdmalloc_pool* made = nullptr;
  EXPECT_EQ(rdmalloc_pool_create(&domain.handle, 1, &of_pool, &made), -EAGAIN);
  Block block;
  iovec range = {block.bytes, kMiB};
  EXPECT_EQ(rdmalloc_reg_prefault(&domain.handle, 1, &range, 1, 1, nullptr, nullptr), -EAGAIN);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), -EAGAIN);
  EXPECT_EQ(rdmalloc_invalidate(nullptr, block.bytes, kMiB, nullptr, nullptr), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(fabric.closes, 1);
  happened.clear();
  ASSERT_EQ(rdmalloc_resume(), 0);
  EXPECT_THAT(happened, ElementsAre(RDMALLOC_DOMAIN_OPEN, kRegistrarOpens, RDMALLOC_DOMAIN_RESUMED))
      << "one domain is closed, so only the other is opened again";
  EXPECT_NE(refused.touch(block.bytes, kMiB), 0u);
}

TEST_F(Quiesce, a_domain_that_does_not_reopen_is_lost_and_the_others_work) {
  StubFabric well;
  StubDomain domain(fabric, attr), healthy(well);
  rdmalloc_heap* heap = make({domain.handle, healthy.handle}, 2 * kMiB);
  ASSERT_NE(heap, nullptr);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, kKiB));
  block[0] = 7;
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  resume_error = -ENODEV;
  EXPECT_EQ(rdmalloc_resume(), -ENODEV);
  EXPECT_EQ(happened.back(), RDMALLOC_DOMAIN_LOST);
  EXPECT_EQ(quiesce_counters().lost_domains, 1u);
  EXPECT_EQ(domain.counters().is_lost, 1u);
  rdmalloc_key key = {};
  EXPECT_EQ(rdmalloc_heap_key(heap, 0, block, 1, &key), -ENODEV);
  EXPECT_EQ(rdmalloc_heap_key(heap, 1, block, 1, &key), 0);
  EXPECT_TRUE(reaches(well, key, block, 1));
  EXPECT_EQ(block[0], 7);
  EXPECT_EQ(domain.touch(block, 1), 0u);
  EXPECT_EQ(domain.last_error, -ENODEV);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  // The next quiesce passes the lost one by.
  EXPECT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), 0);
}

// Seen to fail when what unmakes took the turn of a quiesce: -EAGAIN on the second thread.
TEST_F(Quiesce, two_threads_close_and_destroy_at_once) {
  StubFabric slow;
  static std::atomic<bool> is_inside, may_end, is_resumed;
  is_inside = may_end = is_resumed = false;
  slow.ops.close = [](void*) {
    is_inside = true;
    while (!may_end) std::this_thread::yield();
    EXPECT_FALSE(is_resumed) << "in the middle of a close";
  };
  StubDomain closed_slowly(slow), closed(fabric, attr), domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  rdmalloc_pool *pool = make_pool(domain), *kept = make_pool(domain);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  std::thread closer([&] { EXPECT_EQ(closed_slowly.close(), 0); });
  while (!is_inside) std::this_thread::yield();
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(closed.close(), 0);
  std::thread resumer([&] {
    EXPECT_EQ(rdmalloc_resume(), 0);
    is_resumed = true;
  });
  // -EBUSY, by its pool, until the resume has begun.
  while (rdmalloc_domain_close(domain.handle) != -EAGAIN) std::this_thread::yield();
  may_end = true;
  closer.join();
  resumer.join();
  EXPECT_EQ(rdmalloc_pool_destroy(kept), 0);
}

// Runs `body` on a thread with a cancellation pending, which ends behind it.
void on_a_canceled_thread(std::function<void()> body) {
  pthread_t thread;
  auto run = [](void* arg) -> void* {
    pthread_cancel(pthread_self());
    (*static_cast<std::function<void()>*>(arg))();
    for (;;) pthread_testcancel();
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, run, &body), 0);
  void* end = nullptr;
  pthread_join(thread, &end);
  EXPECT_EQ(end, PTHREAD_CANCELED);
}

// Seen to fail when the joins of our threads were where it ended, with the turn held: the next
// call waited for ever; or with the lock of the watch held: the next domain hung
// (RDMALLOC_FOREIGN=watch).
TEST_F(Quiesce, a_canceled_thread_ends_behind_the_call) {
  auto domain = std::make_unique<StubDomain>(fabric, attr);
  int results[3] = {1, 1, 1};
  // Often: a thread of ours that has ended before the join is none to be waited for.
  for (int round = 0; round < 30; ++round) {
    on_a_canceled_thread([&] { results[0] = rdmalloc_quiesce(-1); });
    on_a_canceled_thread([&] { results[1] = rdmalloc_resume(); });
    ASSERT_EQ(results[0], 0) << round;
  }
  on_a_canceled_thread([&] { results[2] = domain->close(); });
  EXPECT_THAT(results, ElementsAre(0, 0, 0));
  StubDomain next(fabric, attr);
  EXPECT_EQ(next.open_error, 0);
  EXPECT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), 0);
}

// What ends transfers there may need a registration yet. Seen to fail, by -EAGAIN, when the domains
// were suspended before the event.
TEST_F(Quiesce, gets_work_in_PREPARE_and_not_in_CLOSE) {
  StubDomain domain(fabric, attr);
  Block block;
  std::map<int, int> errors;
  before_event = [&](rdmalloc_domain_event event) {
    domain.touch(block.bytes, kMiB);
    errors[event] = domain.last_error;
  };
  EXPECT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(errors, (std::map<int, int>{{RDMALLOC_DOMAIN_PREPARE, 0},
                                        {RDMALLOC_DOMAIN_CLOSE, -EAGAIN},
                                        {RDMALLOC_DOMAIN_OPEN, -EAGAIN},
                                        {RDMALLOC_DOMAIN_RESUMED, 0}}));
}

// Seen to fail when a domain lost in PREPARE was no part of the way back: it heard nothing.
TEST_F(Quiesce, a_domain_lost_in_PREPARE_hears_LOST) {
  StubDomain domain(fabric, attr);
  before_event = [&](rdmalloc_domain_event event) {
    if (event != RDMALLOC_DOMAIN_PREPARE) return;
    EXPECT_EQ(rdmalloc_domain_lost(domain.handle), 0);
  };
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_THAT(happened, ElementsAre(RDMALLOC_DOMAIN_PREPARE, RDMALLOC_DOMAIN_LOST));
  EXPECT_EQ(domain.close(), 0);
  // One that was closed since hears nothing.
  StubDomain closed(fabric, attr);
  before_event = [&](rdmalloc_domain_event) { EXPECT_EQ(rdmalloc_domain_lost(closed.handle), 0); };
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(closed.close(), 0);
  happened.clear();
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_THAT(happened, ElementsAre());
}

// Its device isn't opened then. Seen to fail when open_domain() did not look at it after the event.
TEST_F(Quiesce, a_domain_lost_in_OPEN_is_not_opened) {
  StubDomain domain(fabric, attr);
  std::uint64_t lost = quiesce_counters().lost_domains;
  before_event = [&](rdmalloc_domain_event event) {
    if (event != RDMALLOC_DOMAIN_OPEN) return;
    EXPECT_EQ(rdmalloc_domain_lost(domain.handle), 0);
  };
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), -ENODEV);
  EXPECT_THAT(happened, ElementsAre(RDMALLOC_DOMAIN_PREPARE, RDMALLOC_DOMAIN_CLOSE,
                                    kRegistrarCloses, RDMALLOC_DOMAIN_OPEN, RDMALLOC_DOMAIN_LOST));
  EXPECT_EQ(quiesce_counters().lost_domains, lost + 1);
  EXPECT_EQ(domain.close(), 0);
}

// Seen to fail, by 0, when a resume looked at each domain as it was opened only.
TEST_F(Quiesce, a_domain_lost_after_its_OPEN_is_an_error_of_the_resume) {
  StubDomain first(fabric);
  StubDomain second(fabric, attr);
  std::uint64_t lost = quiesce_counters().lost_domains;
  before_event = [&](rdmalloc_domain_event event) {
    if (event != RDMALLOC_DOMAIN_OPEN) return;
    EXPECT_EQ(rdmalloc_domain_lost(first.handle), 0);
  };
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  rdmalloc_test::Capture capture;
  EXPECT_EQ(rdmalloc_resume(), -ENODEV);
  EXPECT_NE(capture.end().find("could not be opened again (error -19)"), std::string::npos);
  EXPECT_EQ(quiesce_counters().lost_domains, lost + 1);
  EXPECT_EQ(first.close(), 0);
  EXPECT_EQ(second.close(), 0);
}

// Seen to fail when rdmalloc_domain_lost() was refused there: the domain was resumed.
TEST_F(Quiesce, a_domain_lost_in_CLOSE_or_while_quiesced_hears_LOST) {
  for (bool is_in_event : {true, false}) {
    StubDomain domain(fabric, attr);
    rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
    ASSERT_NE(heap, nullptr);
    std::uint64_t lost = quiesce_counters().lost_domains;
    happened.clear();
    before_event = [&](rdmalloc_domain_event event) {
      if (!is_in_event || event != RDMALLOC_DOMAIN_CLOSE) return;
      EXPECT_EQ(rdmalloc_domain_lost(domain.handle), 0);
    };
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(rdmalloc_domain_lost(domain.handle), is_in_event ? -EALREADY : 0);
    // Seen to fail, by -EAGAIN, when only its phase was looked at.
    EXPECT_EQ(rdmalloc_domain_flush(domain.handle), -ENODEV);
    // Seen to fail, by -EAGAIN, when the gate's answer was the call's.
    Block block;
    iovec range = {block.bytes, kMiB};
    EXPECT_EQ(rdmalloc_reg_prefault(&domain.handle, 1, &range, 1, 1, nullptr, nullptr), -ENODEV);
    EXPECT_EQ(rdmalloc_resume(), -ENODEV);
    EXPECT_THAT(happened, ElementsAre(RDMALLOC_DOMAIN_PREPARE, RDMALLOC_DOMAIN_CLOSE,
                                      kRegistrarCloses, RDMALLOC_DOMAIN_LOST));
    EXPECT_EQ(quiesce_counters().lost_domains, lost + 1);
    EXPECT_EQ(fabric.live(), 0u);
    EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
    EXPECT_EQ(domain.close(), 0);
  }
}

// Seen to fail (it hangs) when the thread could be cancelled in the purge, with the turn, and when
// in the registrar, with a registration in flight.
TEST_F(Quiesce, a_thread_canceled_in_a_callback_ends_behind_the_call) {
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purge = [](void* asked, void*, std::size_t, rdmalloc_purge_reason) {
    pthread_testcancel();
    *static_cast<bool*>(asked) = true;
    return 0;
  };
  ops.purged = [](void*, void*, std::size_t, int) {};
  bool has_asked = false;
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &has_asked, &observer), 0);
  rdmalloc_free(rdmalloc_malloc(4 * kMiB));
  on_a_canceled_thread([&] { EXPECT_GE(rdmalloc_purge(0), 0); });
  EXPECT_TRUE(has_asked);
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);

  StubDomain domain(fabric, attr);
  fabric.before_enter = [](void*, std::size_t) {
    pthread_testcancel();
    return 0;
  };
  void* block = rdmalloc_malloc(kMiB);
  on_a_canceled_thread([&] { rdmalloc_reg_put(domain.get(block, kMiB, kRemote)); });
  EXPECT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(domain.close(), 0);
  rdmalloc_free(block);
}

TEST_F(Quiesce, one_whose_registrar_refuses_the_heap_is_lost) {
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  fabric.capacity_bytes = 0;
  EXPECT_EQ(rdmalloc_resume(), -ENOMEM);
  EXPECT_EQ(domain.counters().is_lost, 1u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(domain.close(), 0);
}

bool has_region(rdmalloc_heap* heap, std::size_t index) {
  rdmalloc_heap_region_info info = {};
  info.size = sizeof info;
  int error = rdmalloc_heap_region(heap, index, &info);
  EXPECT_TRUE(error == 0 || error == -ENOENT) << error;
  return error == 0;
}

// A region that stays, since a caller held what one of the domains had registered of it when the
// other refused it, has no block: it is listed nowhere, and no domain is asked for it again. Seen
// to fail when the resume lost the domain that refused, and when the region was listed.
TEST_F(Quiesce, a_region_that_was_kept_for_a_caller_is_not_registered_again) {
  StubFabric poor;
  StubDomain domain(fabric, attr), other(poor);
  rdmalloc_heap* heap = make({domain.handle, other.handle}, 2 * kMiB);
  ASSERT_NE(heap, nullptr);
  rdmalloc_reg* held = nullptr;
  void* kept = nullptr;
  poor.before_enter = [&](void* base, std::size_t) {
    std::thread([&] { held = domain.get(kept = base, 10, kRemote); }).join();
    return -ENOMEM;
  };
  ASSERT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), -ENOMEM);
  ASSERT_NE(held, nullptr) << domain.last_error;
  EXPECT_FALSE(has_region(heap, 1));
  rdmalloc_key key = {};
  EXPECT_EQ(rdmalloc_heap_key(heap, 1, kept, 10, &key), -EFAULT);
  poor.before_enter = nullptr;
  ASSERT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0);
  EXPECT_NE(region(heap, 1).base, kept);
  EXPECT_TRUE(reaches(poor, region(heap, 1).keys[1], region(heap, 1).base, 2 * kMiB));
  rdmalloc_reg_put(held);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  poor.before_enter = [&](void* base, std::size_t) { return base == kept ? -ENOMEM : 0; };
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(other.counters().is_lost, 0u);
  EXPECT_FALSE(fabric.touches(kept, 2 * kMiB));
  EXPECT_TRUE(reaches(poor, region(heap, 1).keys[1], region(heap, 1).base, 2 * kMiB));
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live() + poor.live(), 0u);
}

// The same of a region that all domains have registered, before the next one was refused. Seen to
// fail likewise.
TEST_F(Quiesce, a_whole_region_of_a_grow_that_failed_is_not_either) {
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(heap, nullptr);
  rdmalloc_reg* held = nullptr;
  void* kept = nullptr;
  fabric.before_enter = [&](void* base, std::size_t) {
    if (kept == nullptr) return kept = base, 0;
    std::thread([&] { held = domain.get(kept, 10, kRemote); }).join();
    return -ENOMEM;
  };
  ASSERT_EQ(rdmalloc_heap_grow(heap, 4 * kMiB), -ENOMEM);
  ASSERT_NE(held, nullptr) << domain.last_error;
  EXPECT_FALSE(has_region(heap, 1));
  rdmalloc_reg_put(held);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  fabric.before_enter = [&](void* base, std::size_t) { return base == kept ? -ENOMEM : 0; };
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(fabric.live(), 1u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Seen to fail with the loop over what is not suspended taken out of empty_domains().
TEST_F(Quiesce, what_heaps_and_pools_give_back_in_a_lost_domain_ends) {
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(heap, nullptr);
  rdmalloc_pool* pool = make_pool(domain, kRemote);
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(rdmalloc_domain_lost(domain.handle), 0);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(fabric.live(), 0u);
  // Or the close waits for ever for a registration that no thread drops.
  ASSERT_EQ(domain.counters().live_count, 0u);
  ASSERT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  EXPECT_EQ(domain.close(), 0);
}

// Seen to fail where the domains are opened before their heaps are registered: the domain is lost.
TEST_F(Quiesce, a_get_beside_a_resume_takes_no_room_from_heaps) {
  attr.max_bytes = 4 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* first = make({domain.handle}, 2 * kMiB);
  rdmalloc_heap* second = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(second, nullptr);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  Block block;
  rdmalloc_reg* reg = nullptr;
  bool has_asked = false;
  fabric.before_enter = [&](void*, std::size_t) {
    if (std::exchange(has_asked, true)) return 0;
    std::thread([&] { reg = domain.get(block.bytes, kMiB); }).join();
    EXPECT_EQ(domain.last_error, -EAGAIN);
    // Nor does a registrar's own call come in.
    EXPECT_EQ(domain.get(block.bytes, kMiB), nullptr);
    return 0;
  };
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_TRUE(has_asked);
  EXPECT_EQ(domain.counters().is_lost, 0u);
  rdmalloc_reg_put(reg);
  EXPECT_EQ(rdmalloc_heap_destroy(first), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(second), 0);
}

// Its place may be another domain's afterwards, in which the heap would be registered. Seen to fail
// with is_in_a_list() false.
TEST_F(Quiesce, a_domain_does_not_close_before_its_heaps_and_pools) {
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(heap, nullptr);
  rdmalloc_pool* pool = make_pool(domain);
  ASSERT_NE(pool, nullptr);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_domain_close(domain.handle), -EBUSY);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(rdmalloc_domain_close(domain.handle), -EBUSY);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  EXPECT_EQ(domain.close(), 0);
}

// Seen to fail where a resume heeds the domain's limits: the domain is lost.
TEST_F(Quiesce, what_is_quarantined_meanwhile_takes_no_room_from_heaps) {
  fabric.ops.flags &= ~RDMALLOC_REGISTRAR_REOPEN;
  fabric.ops.quiesce = fabric.ops.resume = nullptr;
  attr.max_bytes = 3 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(heap, nullptr);
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  fabric.before_leave = {};
  EXPECT_EQ(domain.counters().quarantined, 1u);
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(domain.counters().is_lost, 0u);
  EXPECT_EQ(fabric.live(), 2u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Whether blocks of malloc come to lie in [base, base + length).
bool is_handed_out(const void* base, std::size_t length) {
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(std::make_unique<Block>());
    auto offset = blocks.back()->bytes - static_cast<const char*>(base);
    if (offset > -static_cast<std::ptrdiff_t>(kMiB) && offset < static_cast<std::ptrdiff_t>(length))
      return true;
  }
  return false;
}

// A peer that has its key reaches it. Seen to fail when the heap's end looked only at what was
// registered then: malloc handed the region's memory out.
TEST_F(Quiesce, I13_a_region_it_could_not_deregister_stays_the_heaps) {
  fabric.ops.flags &= ~RDMALLOC_REGISTRAR_REOPEN;
  fabric.ops.quiesce = fabric.ops.resume = nullptr;
  for (bool is_destroyed_before : {true, false}) {
    StubDomain domain(fabric, attr);
    rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
    ASSERT_NE(heap, nullptr);
    rdmalloc_heap_region_info kept = region(heap, 0);
    fabric.before_leave = [](void*, std::size_t) { return -EIO; };
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    fabric.before_leave = {};
    if (is_destroyed_before) {
      EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
      EXPECT_EQ(rdmalloc_resume(), 0);
    } else {
      EXPECT_EQ(rdmalloc_resume(), 0);
      EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
    }
    EXPECT_TRUE(fabric.touches(kept.base, kept.length));
    EXPECT_FALSE(is_handed_out(kept.base, kept.length));
  }
}

// Seen to fail when each error of a resume counted as the device's loss: 2 registrations stayed,
// one of them of a heap, and the purge took the quarantined pages.
TEST_F(Quiesce, I3_a_device_that_refuses_a_heap_is_not_gone) {
  fabric.ops.flags &= ~RDMALLOC_REGISTRAR_REOPEN;
  fabric.ops.flags |= RDMALLOC_REGISTRAR_DIES_WITH_DEVICE;
  fabric.ops.quiesce = fabric.ops.resume = nullptr;
  StubDomain domain(fabric, attr);
  auto block = std::make_unique<Block>();
  domain.touch(block->bytes, kMiB);
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 0);
  fabric.before_leave = {};
  std::size_t quarantined = fabric.bytes();
  rdmalloc_heap *first = make({domain.handle}, 2 * kMiB), *second = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(second, nullptr);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  fabric.capacity_bytes = quarantined + 2 * kMiB;
  EXPECT_EQ(rdmalloc_resume(), -ENOMEM);
  EXPECT_EQ(fabric.live(), 2u);
  EXPECT_EQ(domain.touch(block->bytes, kMiB), 0u);
  EXPECT_EQ(domain.last_error, -ENODEV);
  EXPECT_EQ(rdmalloc_heap_destroy(first), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(second), 0);
  EXPECT_EQ(fabric.live(), 1u);
  std::uint64_t refusals = domain.counters().purge_refusals;
  block.reset();
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_GT(domain.counters().purge_refusals, refusals);
  // Once the device is gone, nothing is in the way.
  EXPECT_EQ(rdmalloc_domain_lost(domain.handle), 0);
  EXPECT_EQ(rdmalloc_domain_lost(domain.handle), -EALREADY);
  refusals = domain.counters().purge_refusals;
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(domain.counters().purge_refusals, refusals);
  EXPECT_EQ(domain.close(), 0);
}

// Seen to fail, by 1, when it was passed on.
TEST_F(Quiesce, a_positive_answer_of_a_registrar_is_an_error) {
  StubDomain domain(fabric, attr);
  quiesce_error = 1;
  EXPECT_EQ(rdmalloc_quiesce(-1), -EIO);
  quiesce_error = 0;
  EXPECT_EQ(rdmalloc_quiesce(-1), 0);
  resume_error = 1;
  EXPECT_EQ(rdmalloc_resume(), -EIO);
  EXPECT_EQ(domain.counters().is_lost, 1u);
}

// One heap is there again when the registrar refuses the next.
TEST_F(Quiesce, a_registration_lost_in_a_resume_ends_with_its_heap) {
  StubDomain domain(fabric, attr);
  rdmalloc_heap* first = make({domain.handle}, 2 * kMiB);
  rdmalloc_heap* second = make({domain.handle}, 2 * kMiB);
  ASSERT_NE(second, nullptr);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  fabric.capacity_bytes = 2 * kMiB;
  EXPECT_EQ(rdmalloc_resume(), -ENOMEM);
  EXPECT_EQ(domain.counters().is_lost, 1u);
  EXPECT_EQ(rdmalloc_heap_destroy(first), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(second), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(domain.close(), 0);
}

}  // namespace
