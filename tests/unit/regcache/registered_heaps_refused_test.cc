// What a heap that is refused leaves to the purge thread, which sleeps then.
#include "alloc/core/helper_threads.h"
#include "alloc/core/purge_signal.h"
#include "tests/support/counters.h"
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
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(rdmalloc_fini(), 0);
  rdmalloc_test::set("purge.decay_ms", decay_ms);
}

}  // namespace
