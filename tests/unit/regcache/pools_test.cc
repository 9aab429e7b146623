// Pools of registered buffers: who gets which, in what order, and what ends them. Each test was
// seen to fail; the comment at each says how.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csetjmp>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "tests/unit/regcache/pools_fixture.h"

namespace {

using Pools = PoolTest;

// Someone who waits, and what became of it.
struct Waiter {
  rdmalloc_pool_waiter head = {};
  rdmalloc_pool* pool;
  rdmalloc_buffer* buffer = nullptr;
  int calls = 0;
  std::thread::id called_on;
  std::vector<Waiter*>* order = nullptr;
  bool puts_at_once = false;

  explicit Waiter(rdmalloc_pool* pool_) : pool(pool_) {
    head.arg = this;
    head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* given) {
      static_cast<Waiter*>(waiter->arg)->ready(given);
    };
  }
  int wait(std::size_t bytes) { return rdmalloc_pool_wait(pool, bytes, &head, &buffer); }

 private:
  void ready(rdmalloc_buffer* given) {
    buffer = given;
    ++calls;
    called_on = std::this_thread::get_id();
    if (order != nullptr) order->push_back(this);
    if (puts_at_once) rdmalloc_pool_put(pool, given);
  }
};

// Fails when side_for() looks at the large ones first, or fill() takes another piece's keys.
TEST_F(Pools, a_buffer_is_the_smallest_that_fits_with_every_domains_key) {
  StubFabric second;
  second.ops.largest = std::size_t{256} << 10;  // so there are pieces
  StubDomain domains[] = {StubDomain(fabric), StubDomain(second)};
  rdmalloc_domain* handles[] = {domains[0].handle, domains[1].handle};
  rdmalloc_pool_attr attr = sizes(5000, 10, 70000, 4);
  rdmalloc_pool* pool = nullptr;
  ASSERT_EQ(rdmalloc_pool_create(handles, 2, &attr, &pool), 0);
  for (auto [bytes, length] : {std::pair<std::size_t, std::size_t>{1, 8192},
                               {8192, 8192},
                               {8193, 73728},
                               {73728, 73728}}) {
    std::vector<rdmalloc_buffer*> all = get_all(pool, bytes);
    ASSERT_EQ(all.size(), length == 8192 ? 10u : 4u);
    for (rdmalloc_buffer* buffer : all) {
      EXPECT_EQ(buffer->length, length);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->addr) % kPage, 0u);
      EXPECT_EQ(fabric.use(buffer->keys[0], buffer->addr, length), StubFabric::Use::kRight);
      EXPECT_EQ(second.use(buffer->keys[1], buffer->addr, length), StubFabric::Use::kRight);
      memset(buffer->addr, 1, length);
    }
    put_all(pool, all);
  }
  rdmalloc_buffer* none = nullptr;
  EXPECT_EQ(rdmalloc_pool_get(pool, 73729, &none), -EMSGSIZE);
  EXPECT_EQ(fabric.live(), 1u) << "one registration holds all buffers";
  EXPECT_EQ(second.live(), 2u);
  EXPECT_EQ(domains[0].close(), -EBUSY) << "a domain does not close under a pool";
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), -EINVAL);
}

// Fails with another count of either side in pool_plan.cc.
TEST_F(Pools, the_default_is_that_of_spdk) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = nullptr;
  ASSERT_EQ(rdmalloc_pool_create(&domain.handle, 1, nullptr, &pool), 0);
  rdmalloc_pool_counters now = counters(pool);
  EXPECT_EQ(now.small.bytes, 8192u);
  EXPECT_EQ(now.small.count, 8192u);
  EXPECT_EQ(now.large.bytes, 132u * 1024);
  EXPECT_EQ(now.large.count, 1024u);
  EXPECT_EQ(now.memory_bytes, 8192u * 8192 + 1024u * 132 * 1024);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Fails when take_shared() does not count down, or get does not count what it found empty.
TEST_F(Pools, all_buffers_can_be_out_and_each_is_out_once) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 1000, 2 * kPage, 10));
  std::vector<rdmalloc_buffer*> all = get_all(pool, kPage);
  std::set<void*> addresses;
  for (rdmalloc_buffer* buffer : all) addresses.insert(buffer->addr);
  EXPECT_EQ(addresses.size(), 1000u);
  rdmalloc_buffer* none = nullptr;
  EXPECT_EQ(rdmalloc_pool_get(pool, 1, &none), -EAGAIN);
  rdmalloc_pool_counters now = counters(pool);
  EXPECT_EQ(now.small.in_use, 1000u);
  EXPECT_EQ(now.small.gets, 1000u);
  EXPECT_EQ(now.small.exhausted, 2u);
  EXPECT_EQ(now.large.in_use, 0u) << "a large one is no substitute";
  put_all(pool, all);
  now = counters(pool);
  EXPECT_EQ(now.small.in_use, 0u);
  EXPECT_EQ(now.small.cached + now.small.free, 1000u);
  EXPECT_GT(now.small.cached, 0u);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when take_shared() does not look into the caches of others.
TEST_F(Pools, what_an_idle_thread_keeps_is_not_out_of_reach) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 50));
  std::mutex mutex;
  std::condition_variable change;
  int phase = 0;
  std::thread idle([&] {
    put_all(pool, get_all(pool, 1));
    std::unique_lock<std::mutex> lock(mutex);
    phase = 1;
    change.notify_all();
    change.wait(lock, [&] { return phase == 2; });
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    change.wait(lock, [&] { return phase == 1; });
  }
  EXPECT_EQ(counters(pool).small.cached, 50u);
  std::vector<rdmalloc_buffer*> all = get_all(pool, 1);
  EXPECT_EQ(all.size(), 50u);
  put_all(pool, all);
  {
    std::lock_guard<std::mutex> lock(mutex);
    phase = 2;
    change.notify_all();
  }
  idle.join();
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Fails when on_thread_exit() forgets the caches, or retire() the gets.
TEST_F(Pools, the_end_of_a_thread_returns_what_it_kept) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 50));
  for (int i = 1; i <= 100; ++i) {
    std::thread([&] { put_all(pool, get_all(pool, 1)); }).join();
    rdmalloc_pool_counters now = counters(pool);
    ASSERT_EQ(now.small.cached, 0u);
    ASSERT_EQ(now.small.free, 50u);
    ASSERT_EQ(now.small.gets, 50u * static_cast<unsigned>(i));
  }
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Fails when share() serves the last who came, or leaves is_out clear.
TEST_F(Pools, those_who_wait_are_served_in_order_on_the_thread_that_puts) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 3));
  std::vector<rdmalloc_buffer*> out = get_all(pool, 1);
  std::vector<Waiter*> order;
  Waiter first(pool), second(pool), third(pool), fourth(pool);
  for (Waiter* one : {&first, &second, &third, &fourth}) {
    one->order = &order;
    ASSERT_EQ(one->wait(1), -EINPROGRESS);
  }
  EXPECT_EQ(counters(pool).small.waiting, 4u);
  EXPECT_EQ(rdmalloc_pool_cancel(pool, &second.head), 0);
  EXPECT_EQ(rdmalloc_pool_cancel(pool, &second.head), -ENOENT);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), -EBUSY) << "with buffers out and waiters";
  std::thread::id putter;
  std::thread([&] {
    putter = std::this_thread::get_id();
    put_all(pool, out);
  }).join();
  EXPECT_EQ(order, (std::vector<Waiter*>{&first, &third, &fourth}));
  EXPECT_EQ(third.called_on, putter);
  EXPECT_EQ(first.buffer, out[0]);
  EXPECT_EQ(second.calls, 0);
  EXPECT_EQ(get(pool, 1), nullptr) << "a waiter's buffer was handed out once more";
  EXPECT_EQ(rdmalloc_pool_cancel(pool, &third.head), -ENOENT);
  for (Waiter* one : order) EXPECT_EQ(rdmalloc_pool_put(pool, one->buffer), 0);
  // With one there, no callback is called.
  EXPECT_EQ(second.wait(1), 0);
  EXPECT_EQ(second.calls, 0);
  EXPECT_EQ(rdmalloc_pool_put(pool, second.buffer), 0);
  EXPECT_EQ(counters(pool).small.in_use, 0u);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Seen to fail without the mark, by -EINPROGRESS: the waiter was linked to itself, and a cancel of
// another never ended.
TEST_F(Pools, a_waiter_that_waits_is_refused_a_second_place) {
  StubDomain domain(fabric);
  rdmalloc_pool* pools[] = {make(domain, sizes(kPage, 1, 65536, 1)),
                            make(domain, sizes(kPage, 1, 65536, 1))};
  rdmalloc_buffer* out[] = {get(pools[0], 1), get(pools[0], 65536), get(pools[1], 1)};
  Waiter waiter(pools[0]);
  EXPECT_EQ(waiter.wait(1), -EINPROGRESS);
  ASSERT_EQ(waiter.wait(1), -EALREADY);
  ASSERT_EQ(waiter.wait(65536), -EALREADY) << "in the other line";
  rdmalloc_buffer* none = nullptr;
  ASSERT_EQ(rdmalloc_pool_wait(pools[1], 1, &waiter.head, &none), -EALREADY) << "in another pool";
  Waiter other(pools[0]);
  EXPECT_EQ(rdmalloc_pool_cancel(pools[0], &other.head), -ENOENT);
  // It has its one place still, and after the end of that another.
  EXPECT_EQ(rdmalloc_pool_put(pools[0], out[0]), 0);
  EXPECT_EQ(waiter.calls, 1);
  EXPECT_EQ(waiter.wait(65536), -EINPROGRESS);
  EXPECT_EQ(rdmalloc_pool_cancel(pools[0], &waiter.head), 0);
  EXPECT_EQ(waiter.wait(1), -EINPROGRESS);
  EXPECT_EQ(rdmalloc_pool_cancel(pools[0], &waiter.head), 0);
  rdmalloc_pool_counters stats = counters(pools[0]);
  EXPECT_EQ(stats.small.waiting, 0u);
  EXPECT_EQ(stats.large.waiting, 0u);
  EXPECT_EQ(rdmalloc_pool_put(pools[0], waiter.buffer), 0);
  EXPECT_EQ(rdmalloc_pool_put(pools[0], out[1]), 0);
  EXPECT_EQ(rdmalloc_pool_put(pools[1], out[2]), 0);
  for (rdmalloc_pool* pool : pools) EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Fails (by the stack's end) when call_back() calls inside a callback.
TEST_F(Pools, a_line_of_a_hundred_thousand_takes_no_stack) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 1));
  rdmalloc_buffer* only = get(pool, 1);
  std::vector<Waiter> line(100000, Waiter(pool));
  for (Waiter& one : line) {
    one.head.arg = &one;
    one.puts_at_once = true;
    ASSERT_EQ(one.wait(1), -EINPROGRESS);
  }
  EXPECT_EQ(rdmalloc_pool_put(pool, only), 0);
  for (Waiter& one : line) ASSERT_EQ(one.calls, 1);
  EXPECT_EQ(counters(pool).small.in_use, 0u);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Fails when the putter touches the pool after it has called back (asan, and the handle is refused
// the second time).
TEST_F(Pools, a_callback_may_destroy_the_pool) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 1));
  rdmalloc_buffer* only = get(pool, 1);
  struct Last {
    rdmalloc_pool_waiter head;
    rdmalloc_pool* pool;
    int destroyed;
  } last = {{}, pool, 1};
  last.head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
    auto* self = reinterpret_cast<Last*>(waiter);
    rdmalloc_pool_put(self->pool, buffer);
    self->destroyed = rdmalloc_pool_destroy(self->pool);
  };
  rdmalloc_buffer* none = nullptr;
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &last.head, &none), -EINPROGRESS);
  EXPECT_EQ(rdmalloc_pool_put(pool, only), 0);
  EXPECT_EQ(last.destroyed, 0);
  EXPECT_EQ(rdmalloc_pool_put(pool, only), -EINVAL);
  EXPECT_EQ(domain.close(), 0);
}

// Fails when put does not look at is_out, or at the address.
TEST_F(Pools, what_is_put_twice_or_no_buffer_is_refused) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 4));
  rdmalloc_buffer* buffer = get(pool, 1);
  auto* between = reinterpret_cast<rdmalloc_buffer*>(reinterpret_cast<char*>(buffer) + 8);
  EXPECT_EQ(rdmalloc_pool_put(pool, between), -EINVAL);
  EXPECT_EQ(rdmalloc_pool_put(pool, nullptr), -EINVAL);
  EXPECT_EQ(rdmalloc_pool_put(pool, buffer + 4), -EINVAL);
  auto* no_pool = reinterpret_cast<rdmalloc_pool*>(reinterpret_cast<char*>(pool) + 64);
  EXPECT_EQ(rdmalloc_pool_put(no_pool, buffer), -EINVAL);
  EXPECT_EQ(rdmalloc_pool_put(pool, buffer), 0);
  EXPECT_EQ(rdmalloc_pool_put(pool, buffer), -EINVAL);
  std::vector<rdmalloc_buffer*> all = get_all(pool, 1);
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), -EBUSY);
  put_all(pool, all);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Threads get, put and wait; a buffer that two have at once is seen by its bytes. Fails when
// keep_cached() does not look at `waiting` (a waiter is never called).
TEST_F(Pools, many_threads_share_few_buffers_and_all_who_wait_are_served) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 6, 2 * kPage, 2));
  constexpr int kRounds = 1000;
  std::atomic<int> shared_at_once{0}, served{0};
  // Waits until it is called: a std::promise would do, but for its allocations.
  struct Turn {
    rdmalloc_pool_waiter head = {};
    std::atomic<rdmalloc_buffer*> buffer{nullptr};
  };
  auto work = [&](unsigned seed) {
    std::minstd_rand random(seed);
    for (int round = 0; round < kRounds; ++round) {
      std::size_t bytes = random() % 4 == 0 ? 2 * kPage : kPage;
      Turn turn;
      turn.head.arg = &turn;
      turn.head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
        static_cast<Turn*>(waiter->arg)->buffer.store(buffer, std::memory_order_release);
      };
      rdmalloc_buffer* buffer = nullptr;
      int error = rdmalloc_pool_wait(pool, bytes, &turn.head, &buffer);
      if (error == -EINPROGRESS) {
        while ((buffer = turn.buffer.load(std::memory_order_acquire)) == nullptr)
          std::this_thread::yield();
        ++served;
      }
      auto* owner = static_cast<std::atomic<unsigned>*>(buffer->addr);
      if (owner->exchange(seed) != 0) ++shared_at_once;
      if (random() % 8 == 0) std::this_thread::yield();
      if (owner->exchange(0) != seed) ++shared_at_once;
      rdmalloc_pool_put(pool, buffer);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= 12; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared_at_once, 0);
  rdmalloc_pool_counters now = counters(pool);
  EXPECT_EQ(now.small.gets + now.large.gets, 12u * unsigned{kRounds});
  EXPECT_EQ(now.small.exhausted + now.large.exhausted, static_cast<unsigned>(served.load()));
  EXPECT_EQ(now.small.in_use + now.large.in_use + now.small.waiting + now.large.waiting, 0u);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Fails when destroy leaves a thread its cache: its next pool in that place gets buffers of this.
TEST_F(Pools, a_thread_outlives_pools_it_used) {
  StubDomain domain(fabric);
  for (int i = 0; i < 200; ++i) {
    rdmalloc_pool* pool = make(domain, sizes(kPage, 8 + static_cast<unsigned>(i) % 5));
    std::vector<rdmalloc_buffer*> all = get_all(pool, 1);
    ASSERT_EQ(all.size(), 8u + static_cast<unsigned>(i) % 5);
    put_all(pool, all);
    ASSERT_EQ(rdmalloc_pool_destroy(pool), 0);
  }
}

// What a child finds of its parent's pool. The first step that went wrong, or 0.
int use_inherited(rdmalloc_pool* pool, rdmalloc_buffer* out, StubFabric& fabric) {
  std::uint64_t leaves = fabric.leaves;
  if (memcmp(out->addr, "parent", 7) != 0) return 1;
  strcpy(static_cast<char*>(out->addr), "child");
  if (out->keys[0].lkey != 0 || out->keys[0].generation != 0) return 2;
  rdmalloc_buffer* buffer = nullptr;
  rdmalloc_pool_waiter waiter = {};
  waiter.ready = [](rdmalloc_pool_waiter*, rdmalloc_buffer*) {};
  if (rdmalloc_pool_get(pool, 1, &buffer) != -ECHILD) return 3;
  if (rdmalloc_pool_put(pool, out) != -ECHILD) return 4;
  if (rdmalloc_pool_wait(pool, 1, &waiter, &buffer) != -ECHILD) return 5;
  if (rdmalloc_pool_cancel(pool, &waiter) != -ECHILD) return 6;
  StubFabric own_fabric;
  StubDomain own(own_fabric);
  rdmalloc_pool_attr attr = {};
  attr.size = sizeof attr;
  attr.small_count = 4;
  attr.large_count = RDMALLOC_POOL_NONE;
  rdmalloc_pool* mine = nullptr;
  if (rdmalloc_pool_create(&own.handle, 1, &attr, &mine) != 0 || mine == pool) return 7;
  if (rdmalloc_pool_get(mine, 1, &buffer) != 0 || rdmalloc_pool_put(mine, buffer) != 0) return 8;
  if (rdmalloc_pool_destroy(pool) != 0 || rdmalloc_pool_destroy(pool) != -EINVAL) return 9;
  if (rdmalloc_pool_destroy(mine) != 0 || own.close() != 0) return 10;
  if (fabric.leaves != leaves) return 11;
  rdmalloc_purge(0);  // with what this thread has kept of what it freed
  return rdmalloc_range_is_free(out->addr, 4096) ? 0 : 12;
}

// Fails when the tables are not wiped on fork (2), the pool's mark is not kept over the fork (3),
// or the child's copy is never freed (12).
TEST_F(Pools, I11_a_child_has_the_memory_and_no_registrations) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "SKIP: under ThreadSanitizer no child starts a thread, as a domain's opening does";
#endif
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 10));
  rdmalloc_buffer* out = get(pool, 1);
  strcpy(static_cast<char*>(out->addr), "parent");
  pid_t child = fork();
  if (child == 0) _exit(use_inherited(pool, out, fabric));
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_STREQ(static_cast<char*>(out->addr), "parent");
  EXPECT_EQ(fabric.use(out->keys[0], out->addr, kPage), StubFabric::Use::kRight);
  EXPECT_EQ(rdmalloc_pool_put(pool, out), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// A callback in C++ that leaves by an exception. Seen to fail when a flag said for ever that it
// runs: no callback ran on this thread any more.
TEST_F(Pools, a_waiter_that_throws_keeps_no_other_from_its_turn) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 1));
  struct Turn {
    rdmalloc_pool_waiter head = {};
    bool throws = false;
    rdmalloc_buffer* given = nullptr;
  } thrower, after;
  for (Turn* turn : {&thrower, &after}) {
    turn->head.arg = turn;
    turn->head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
      auto& my = *static_cast<Turn*>(waiter->arg);
      my.given = buffer;
      if (my.throws) throw 7;
    };
  }
  thrower.throws = true;
  rdmalloc_buffer *out = get(pool, 1), *none = nullptr;
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &thrower.head, &none), -EINPROGRESS);
  EXPECT_THROW(rdmalloc_pool_put(pool, out), int);
  ASSERT_EQ(thrower.given, out) << "the put has happened";
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &after.head, &none), -EINPROGRESS);
  EXPECT_EQ(rdmalloc_pool_put(pool, out), 0);
  EXPECT_EQ(after.given, out);
  EXPECT_EQ(rdmalloc_pool_put(pool, out), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Puts from far down the stack.
[[gnu::noinline]] int put_deep(rdmalloc_pool* pool, rdmalloc_buffer* buffer, int depth) {
  volatile char room[4096];
  room[0] = static_cast<char>(depth);
  int error = depth == 0 ? rdmalloc_pool_put(pool, buffer) : put_deep(pool, buffer, depth - 1);
  room[1] = room[0];
  return error;
}

// The next put is made by a function called from where the exception was caught, on a stack that
// reaches further down. Seen to fail where only a frame further up ended the state of the callback
// that threw: the waiter was queued and never called.
TEST_F(Pools, a_waiter_that_throws_keeps_no_deeper_put_waiting) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 1));
  rdmalloc_pool_waiter thrower = {}, after = {};
  thrower.ready = [](rdmalloc_pool_waiter*, rdmalloc_buffer*) { throw 7; };
  after.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer*) { waiter->arg = waiter; };
  rdmalloc_buffer *out = get(pool, 1), *none = nullptr;
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &thrower, &none), -EINPROGRESS);
  EXPECT_THROW(rdmalloc_pool_put(pool, out), int);
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &after, &none), -EINPROGRESS);
  EXPECT_EQ(put_deep(pool, out, 8), 0);
  EXPECT_EQ(after.arg, &after) << "not called";
  EXPECT_EQ(rdmalloc_pool_put(pool, out), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// A callback puts buffers, and with that gives two others their turn, and throws. They are called
// before the exception is caught, in their order. Seen to fail without rdmalloc_pool_unwinds():
// never called.
TEST_F(Pools, a_waiter_that_throws_keeps_none_behind_it_waiting) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 3));
  std::vector<rdmalloc_buffer*> all = get_all(pool, 1);
  ASSERT_EQ(all.size(), 3u);
  struct Turn {
    rdmalloc_pool_waiter head = {};
    rdmalloc_pool* pool = nullptr;
    std::vector<rdmalloc_buffer*>* puts = nullptr;
    std::vector<Turn*>* called = nullptr;
    rdmalloc_buffer* given = nullptr;
  };
  std::vector<Turn*> called;
  std::vector<rdmalloc_buffer*> puts = {all[1], all[2]};
  Turn thrower, first, second;
  rdmalloc_buffer* none = nullptr;
  for (Turn* turn : {&thrower, &first, &second}) {
    turn->pool = pool;
    turn->called = &called;
    turn->head.arg = turn;
    turn->head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
      auto& my = *static_cast<Turn*>(waiter->arg);
      my.given = buffer;
      my.called->push_back(&my);
      if (my.puts == nullptr) return;
      for (rdmalloc_buffer* one : *my.puts) EXPECT_EQ(rdmalloc_pool_put(my.pool, one), 0);
      EXPECT_EQ(my.called->size(), 1u) << "inside, and not after";
      throw 7;
    };
    ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &turn->head, &none), -EINPROGRESS);
  }
  thrower.puts = &puts;
  EXPECT_THROW(rdmalloc_pool_put(pool, all[0]), int);
  EXPECT_EQ(called, (std::vector<Turn*>{&thrower, &first, &second}));
  EXPECT_EQ(first.given, all[1]);
  EXPECT_EQ(second.given, all[2]);
  put_all(pool, all);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// A callback puts the second buffer and jumps out, from `jumps_from` frames down the stack; the
// next put is made from `puts_from` frames down. Both that are behind the jumper are called. Seen
// to fail with a flag that only an unwinding ends: never called. The deeper put, and the waiter
// behind the one that jumps, where a jump was known by the stack frame that the next put has.
TEST_F(Pools, a_waiter_that_jumps_out_keeps_no_other_waiting) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 2));
  static std::jmp_buf back;
  auto jump_out = [&](int jumps_from, int puts_from) {
    std::vector<rdmalloc_buffer*> all = get_all(pool, 1);
    ASSERT_EQ(all.size(), 2u);
    struct Turn {
      rdmalloc_pool_waiter head = {};
      rdmalloc_pool* pool = nullptr;
      rdmalloc_buffer *puts = nullptr, *given = nullptr;
    } jumper, behind, after;
    jumper.head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer*) {
      auto& my = *static_cast<Turn*>(waiter->arg);
      EXPECT_EQ(rdmalloc_pool_put(my.pool, my.puts), 0);
      std::longjmp(back, 1);
    };
    jumper.pool = pool;
    jumper.puts = all[1];
    rdmalloc_buffer* none = nullptr;
    for (Turn* turn : {&behind, &after})
      turn->head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
        static_cast<Turn*>(waiter->arg)->given = buffer;
      };
    for (Turn* turn : {&jumper, &behind, &after}) turn->head.arg = turn;
    for (Turn* turn : {&jumper, &behind})
      ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &turn->head, &none), -EINPROGRESS);
    if (setjmp(back) == 0) {
      put_deep(pool, all[0], jumps_from);
      FAIL() << "it came back";
    }
    EXPECT_EQ(behind.given, all[1]) << "not called on the way";
    ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &after.head, &none), -EINPROGRESS);
    EXPECT_EQ(put_deep(pool, all[0], puts_from), 0);
    EXPECT_EQ(after.given, all[0]) << "not called";
    put_all(pool, all);
  };
  jump_out(8, 0);
  jump_out(0, 8);
  jump_out(4, 4);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// The same as with an exception with the end of the thread, which unwinds its stack.
TEST_F(Pools, a_waiter_that_ends_its_thread_keeps_none_waiting) {
  StubDomain domain(fabric);
  rdmalloc_pool* pool = make(domain, sizes(kPage, 2));
  std::vector<rdmalloc_buffer*> all = get_all(pool, 1);
  struct Turn {
    rdmalloc_pool_waiter head = {};
    rdmalloc_pool* pool = nullptr;
    std::vector<rdmalloc_buffer*>* all = nullptr;
    rdmalloc_buffer* given = nullptr;
  } ender, after;
  for (Turn* turn : {&ender, &after}) {
    turn->pool = pool;
    turn->all = &all;
    turn->head.arg = turn;
  }
  ender.head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
    auto& my = *static_cast<Turn*>(waiter->arg);
    my.given = buffer;
    EXPECT_EQ(rdmalloc_pool_put(my.pool, (*my.all)[1]), 0);
    pthread_exit(nullptr);
  };
  after.head.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
    static_cast<Turn*>(waiter->arg)->given = buffer;
  };
  rdmalloc_buffer* none = nullptr;
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &ender.head, &none), -EINPROGRESS);
  ASSERT_EQ(rdmalloc_pool_wait(pool, 1, &after.head, &none), -EINPROGRESS);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* arg) -> void* {
                  auto& my = *static_cast<Turn*>(arg);
                  rdmalloc_pool_put(my.pool, (*my.all)[0]);
                  return nullptr;
                },
                &ender),
            0);
  pthread_join(thread, nullptr);
  EXPECT_EQ(ender.given, all[0]);
  EXPECT_EQ(after.given, all[1]);
  put_all(pool, all);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

}  // namespace
