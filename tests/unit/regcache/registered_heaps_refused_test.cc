// What a heap that is refused leaves to the purge thread, which sleeps then; and what is said of
// it.
#include <algorithm>
#include <memory>
#include <string>

#include "alloc/core/helper_threads.h"
#include "alloc/core/purge_signal.h"
#include "alloc/purge/purge.h"
#include "tests/support/capture.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
#include "tests/support/observer.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::wait_until;

// Waits until the purge thread sleeps with nothing to do.
void wait_for_idle() {
  using namespace rdmalloc::detail;
  wait_until([] { return purge_signal.sleep.load() == kIdle; });
}

// Seen to hang, with all of it dirty for good, without the note in take_regions().
TEST_F(RegisteredHeaps, I7_memory_of_one_that_is_refused_is_given_back) {
  std::uint64_t decay_ms = counter("purge.decay_ms");
  rdmalloc_test::set("purge.decay_ms", 10);
  // Else the purge thread would look each second whether it is the last.
  rdmalloc::first_thread_notifies = true;
  ASSERT_EQ(rdmalloc_init(), 0);
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  int good = 0;
  fabric.before_enter = [&](void*, std::size_t) { return good-- > 0 ? 0 : -EPERM; };
  for (int registered : {0, 2}) {
    wait_for_idle();
    good = registered;
    EXPECT_EQ(make({domain.handle}, 8 * kMiB), nullptr);
    EXPECT_EQ(last_error, -EPERM);
    wait_until([] { return counter("stats.dirty_bytes") == 0; });
    wait_for_idle();
    good = registered;
    EXPECT_EQ(rdmalloc_heap_grow(heap, 8 * kMiB), -EPERM);
    wait_until([] { return counter("stats.dirty_bytes") == 0; });
  }
  fabric.before_enter = nullptr;
  wait_for_idle();
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  wait_until(
      [] { return counter("stats.dirty_bytes") == 0; });  // and without that in heap_destroy()
  EXPECT_EQ(rdmalloc_fini(), 0);
  rdmalloc_test::set("purge.decay_ms", decay_ms);
}

// The one line that a refusal writes, without what each begins with.
template <class Body>
std::string said(Body body) {
  rdmalloc_test::Capture capture;
  body();
  std::string text = capture.end();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  return text.substr(0, text.find('\n'))
      .substr(std::min(text.size(), std::strlen("rdmalloc: warning: ")));
}

// Seen to fail with nothing said for each of these errors.
TEST_F(RegisteredHeaps, what_is_refused_is_named) {
  StubDomain domain(fabric);
  StubFabric wide(RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG);
  StubDomain inexact(wide);
  rdmalloc_domain_attr attr = {};
  attr.largest = 4096;
  StubDomain narrow(fabric, attr);
  rdmalloc_domain* closed = nullptr;
  {
    StubDomain gone(fabric);
    closed = gone.handle;
  }
  auto refused = [&](const std::vector<rdmalloc_domain*>& domains, int error,
                     std::uint32_t access) {
    std::string text = said([&] { EXPECT_EQ(make(domains, kMiB, access), nullptr); });
    EXPECT_EQ(last_error, error) << text;
    return text;
  };
  const std::string who = "rdmalloc_heap_create: ";
  EXPECT_EQ(refused({inexact.handle, domain.handle, inexact.handle}, -EINVAL, 0),
            who + "domains[2] is domains[0] too (stub); name each domain once");
  EXPECT_EQ(refused({closed}, -EINVAL, 0),
            who + "domains[0] is NULL, closed, or no domain; name domains that are open");
  EXPECT_EQ(refused(std::vector<rdmalloc_domain*>(65, domain.handle), -EINVAL, 0),
            who + "65 domains; allowed: 1 to 64");
  EXPECT_EQ(refused({domain.handle}, -EINVAL, 0x80),
            who +
                "`access` is 0x80, with rights that are not known; allowed: those of "
                "RDMALLOC_ACCESS_LOCAL and "
                "RDMALLOC_ACCESS_REMOTE, together 0x1f");
  EXPECT_EQ(refused({domain.handle, inexact.handle}, -EACCES, kRemote),
            who +
                "remote rights, and the registrar of domains[1] (stub) can't open exactly the "
                "bytes asked for; ask for "
                "RDMALLOC_ACCESS_LOCAL, or leave that domain out");
  EXPECT_EQ(refused({narrow.handle}, -EMSGSIZE, 0),
            who +
                "its domains register 4096 bytes at once, and a region of a heap is 2097152 at "
                "least; open them with a "
                "larger `largest`");
  EXPECT_EQ(rdmalloc_domain_lost(narrow.handle), 0);
  EXPECT_EQ(refused({narrow.handle}, -ENODEV, 0),
            who + "domains[0] is lost, its device is gone; close it and open another");
}

// Seen to fail: of a grow it was said that a domain had refused, and that less should be asked for.
TEST_F(RegisteredHeaps, what_a_page_event_refuses_is_said) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  std::string created, grown;
  rdmalloc_test::Observer observer([&](char*, std::size_t) {
    if (!created.empty()) return 0;
    created = said([&] { EXPECT_EQ(make({domain.handle}, 2 * kMiB), nullptr); });
    EXPECT_EQ(last_error, -EDEADLK);
    grown = said([&] { EXPECT_EQ(rdmalloc_heap_grow(heap, kMiB), -EDEADLK); });
    return 0;
  });
  ASSERT_EQ(observer.added(), 0);
  rdmalloc_free(rdmalloc_malloc(16 * kMiB));
  rdmalloc_purge(0);
  EXPECT_NE(created.find("called inside a page event"), std::string::npos) << created;
  EXPECT_NE(grown.find("this is inside a page event"), std::string::npos) << grown;
  EXPECT_EQ(observer.remove(), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when add() takes an answer of half a registration for a refusal.
TEST_F(RegisteredHeaps, I13_memory_that_could_not_be_undone_stays_out_of_reach) {
  StubDomain domain(fabric);
  char* half = nullptr;
  fabric.before_enter = [&](void* base, std::size_t) {
    half = static_cast<char*>(base);
    return -ENOTRECOVERABLE;
  };
  EXPECT_EQ(make({domain.handle}, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOTRECOVERABLE);
  EXPECT_EQ(domain.counters().quarantined, 1u);
  std::vector<char*> blocks;
  for (int i = 0; i < 200; ++i) {
    blocks.push_back(static_cast<char*>(rdmalloc_malloc(100 * kKiB)));
    EXPECT_TRUE(blocks.back() + 100 * kKiB <= half || blocks.back() >= half + 4 * kMiB);
  }
  for (char* block : blocks) rdmalloc_free(block);
  EXPECT_EQ(domain.close(), 0);
}

// Fails when an observer that is added wakes no thread that sleeps: it hears of what is reserved
// when something else does.
TEST_F(RegisteredHeaps, I7_a_new_observer_wakes_a_thread_that_sleeps) {
  rdmalloc::first_thread_notifies = true;  // as above
  ASSERT_EQ(rdmalloc_init(), 0);
  rdmalloc_free(rdmalloc_malloc(kMiB));
  rdmalloc_purge(0);
  wait_for_idle();
  std::atomic<bool> is_told{false};
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.reserve = [](void* told, void*, std::size_t) {
    *static_cast<std::atomic<bool>*>(told) = true;
  };
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &is_told, &observer), 0);
  wait_until([&] { return is_told.load(); });
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
  EXPECT_EQ(rdmalloc_fini(), 0);
}

// Fails when its end makes no thread: its pages stay away from the others for good.
TEST_F(RegisteredHeaps, I7_one_that_ends_in_a_pause_leaves_its_pages_to_the_thread) {
  rdmalloc_heap_attr attr = rdmalloc_test::heap_attr(2 * kMiB, RDMALLOC_PAGE_4K);
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  ASSERT_EQ(rdmalloc_purge_pause(), 0);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 2 * kMiB);
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  ASSERT_TRUE(rdmalloc::purge_counters().thread_runs);
  wait_until([] { return counter("stats.heap_retired_bytes") == 0; });
}

// Fails when what end() keeps of a create that failed is given back with the rest.
TEST_F(RegisteredHeaps, I13_a_region_before_the_refused_one_stays_out_of_reach) {
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric, attr);
  fabric.capacity_bytes = 3 * kMiB;
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  EXPECT_EQ(make({domain.handle}, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  fabric.before_leave = nullptr;
  EXPECT_EQ(domain.counters().quarantined, 1u);
  ASSERT_EQ(fabric.live(), 1u);
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) {
    blocks.push_back(rdmalloc_malloc(100 * kKiB));
    EXPECT_FALSE(fabric.touches(blocks.back(), 100 * kKiB));
  }
  for (void* block : blocks) rdmalloc_free(block);
  EXPECT_EQ(domain.close(), 0);
}

// Fails when the second one enters its regions where the first one does.
TEST_F(RegisteredHeaps, a_grow_beside_another_is_refused) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  RegistrarGate gate;
  std::atomic<bool> is_first{true};
  fabric.before_enter = [&](void*, std::size_t) {
    return is_first.exchange(false) ? gate.pass() : 0;
  };
  std::thread grower([heap] { EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0); });
  gate.wait_until_inside();
  EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), -EBUSY);
  gate.open();
  grower.join();
  EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0);
  EXPECT_EQ(counters(heap).budget_bytes, 6 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when rdmalloc_heap_key() looks at where a range begins only.
TEST_F(RegisteredHeaps, I13_no_key_is_given_of_more_than_a_region) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  auto* end = static_cast<char*>(region(heap, 0).base) + 2 * kMiB;
  rdmalloc_key key = {};
  EXPECT_EQ(rdmalloc_heap_key(heap, 0, end - 8, 8, &key), 0);
  EXPECT_EQ(rdmalloc_heap_key(heap, 0, end - 8, 9, &key), -EFAULT);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when heed_domains() does not bound regions by the room for their keys.
TEST_F(RegisteredHeaps, no_heap_has_more_keys_than_there_is_room_for) {
  constexpr std::size_t kDomains = 32, kRegions = 256 / kDomains;
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  std::vector<std::unique_ptr<StubDomain>> opened;
  std::vector<rdmalloc_domain*> domains;
  for (std::size_t i = 0; i < kDomains; ++i) {
    opened.push_back(std::make_unique<StubDomain>(fabric, attr));
    domains.push_back(opened.back()->handle);
  }
  EXPECT_EQ(make(domains, (kRegions + 1) * attr.largest), nullptr);
  EXPECT_EQ(last_error, -EMSGSIZE);
  rdmalloc_heap* heap = make(domains, kRegions * attr.largest);
  EXPECT_EQ(last_error, 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

}  // namespace
