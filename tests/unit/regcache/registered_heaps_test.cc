// Registered heaps over the real allocator, with a registrar that keeps strict books. Each test was
// seen to fail; the comment at each says how.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/capture.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Random;

// Fails when close_heaps() wants the registration open, so that heap and domain stay for ever; when
// reopen_heaps() opens it again; when rdmalloc_heap_key() does not look at the loss.
TEST_F(RegisteredHeaps, a_lost_domain_gives_no_keys_and_lets_heap_and_domain_go) {
  StubFabric dead;
  StubDomain domain(fabric), lost(dead);
  rdmalloc_heap* heap = make({lost.handle, domain.handle}, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  void* block = rdmalloc_heap_malloc(heap, 100);
  rdmalloc_test::Capture capture;
  ASSERT_EQ(rdmalloc_domain_lost(lost.handle), 0);
  capture.end();
  rdmalloc_key key;
  EXPECT_EQ(rdmalloc_heap_key(heap, 0, block, 100, &key), -ENODEV);
  EXPECT_EQ(rdmalloc_reg_key(lost.handle, block, 100, kRemote, &key), -ENODEV);
  EXPECT_EQ(rdmalloc_heap_key(heap, 1, block, 100, &key), 0);
  // A heap that can't go for another's sake is as it was, and the lost registration stays lost.
  rdmalloc_reg* held = domain.get(block, 100);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), -EBUSY);
  EXPECT_EQ(lost.get(block, 100), nullptr);
  EXPECT_EQ(lost.last_error, -ENODEV);
  rdmalloc_reg_put(held);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live() + dead.live(), 0u);
  EXPECT_EQ(lost.close(), 0);
}

// Fails when the heap's registration is not put into the slots, or reg_key refuses remote rights.
TEST_F(RegisteredHeaps, every_block_has_keys_from_the_start_malloc_registers_none) {
  StubFabric other_fabric;
  StubDomain domain(fabric), other(other_fabric);
  rdmalloc_heap* heap = make({domain.handle, other.handle}, 16 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(fabric.calls, 1u);
  EXPECT_EQ(other_fabric.calls, 1u);
  rdmalloc_heap_region_info info = region(heap, 0);
  EXPECT_EQ(info.length, 16 * kMiB);
  EXPECT_EQ(info.domain_count, 2u);
  rdmalloc_heap_region_info none = {sizeof none, nullptr, 0, 0, nullptr};
  EXPECT_EQ(rdmalloc_heap_region(heap, 1, &none), -ENOENT);
  // What the inline half of rdmalloc_reg_key() reads: no key of the heap takes a lock.
  const auto* head = reinterpret_cast<const rdmalloc_domain_head*>(domain.handle);
  for (std::size_t at = 0; at < info.length; at += RDMALLOC_SLICE_BYTES) {
    std::size_t offset = reinterpret_cast<std::uintptr_t>(info.base) + at - head->arena_base;
    ASSERT_NE(head->sticky[offset >> RDMALLOC_SLICE_SHIFT], 0U);
  }
  for (std::size_t bytes : {std::size_t{1}, std::size_t{100}, 5 * kKiB, 100 * kKiB, 3 * kMiB}) {
    auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, bytes));
    ASSERT_NE(block, nullptr);
    rdmalloc_key key = {}, again = {};
    ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, bytes, kRemote, &key), 0);
    EXPECT_TRUE(reaches(fabric, key, block, bytes));
    EXPECT_NE(key.rkey, 0u);
    EXPECT_EQ(std::memcmp(&key, &info.keys[0], sizeof key), 0);
    ASSERT_EQ(rdmalloc_heap_key(heap, 1, block, bytes, &again), 0);
    EXPECT_EQ(again.generation, info.keys[1].generation);
    EXPECT_TRUE(reaches(other_fabric, again, block, bytes));
    // The counted way too, local and remote.
    EXPECT_EQ(domain.touch(block, bytes), key.generation);
    EXPECT_EQ(domain.touch(block, bytes, kRemote), key.generation);
    EXPECT_EQ(rdmalloc_reg_key(domain.handle, block, bytes, RDMALLOC_ACCESS_REMOTE_ATOMIC, &key),
              -EACCES)
        << "a right that the heap does not grant";
  }
  EXPECT_EQ(fabric.calls, 1u);
  EXPECT_EQ(domain.counters().misses, 0u);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live() + other_fabric.live(), 0u);
  EXPECT_EQ(fabric.leaves, 1u);
}

// Fails when spans of such a heap are freed to the page heap, or taken from it.
TEST_F(RegisteredHeaps, I13_nothing_else_ever_lies_in_the_range) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 8 * kMiB);
  ASSERT_EQ(last_error, 0);
  rdmalloc_heap* other = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(nullptr, &other), 0);
  Random random(3);
  void* blocks[300] = {};
  for (int step = 0; step < 20000; ++step) {
    void*& block = blocks[random.below(300)];
    if (block != nullptr) {
      void* moved =
          random.below(2) == 0 ? nullptr : rdmalloc_realloc(block, random.size_between(1, kMiB));
      rdmalloc_free(moved != nullptr ? moved : block);
      block = nullptr;
      continue;
    }
    std::size_t bytes = random.size_between(1, 200 * kKiB);
    std::size_t whose = random.below(3);
    block = whose == 0   ? rdmalloc_malloc(bytes)
            : whose == 1 ? rdmalloc_heap_malloc(heap, bytes)
                         : rdmalloc_heap_malloc(other, bytes);
    if (block != nullptr) std::memset(block, 1, std::min<std::size_t>(bytes, 100));
    if (step % 1000 == 0) {
      expect_only(heap);
      rdmalloc_purge(0);
      ASSERT_TRUE(rdmalloc::page_heap_is_valid());
    }
  }
  expect_only(heap);
  for (void* block : blocks) rdmalloc_free(block);
  EXPECT_EQ(counters(heap).live_blocks, 0u);
  EXPECT_EQ(fabric.calls, 1u);
  // All of it is one free run again.
  void* most = rdmalloc_heap_malloc(heap, 8 * kMiB);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(other), 0);
}

// Fails when destroy drops by range instead of by registration.
TEST_F(RegisteredHeaps, destroy_deregisters_exactly_what_it_registered) {
  StubDomain domain(fabric);
  rdmalloc_heap* first = make({domain.handle}, 4 * kMiB);
  rdmalloc_heap* second = make({domain.handle}, 6 * kMiB);
  void* ordinary = rdmalloc_malloc(kMiB);
  ASSERT_NE(domain.touch(ordinary, kMiB), 0u);
  ASSERT_EQ(fabric.live(), 3u);
  rdmalloc_heap_region_info info = region(first, 0);
  ASSERT_EQ(rdmalloc_heap_destroy(first), 0);
  EXPECT_EQ(fabric.live(), 2u);
  EXPECT_EQ(fabric.leaves, 1u);
  EXPECT_FALSE(fabric.touches(info.base, info.length));
  rdmalloc_key key = {};
  EXPECT_EQ(rdmalloc_heap_key(first, 0, info.base, 1, &key), -EINVAL);
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, info.base, 1, RDMALLOC_ACCESS_LOCAL, &key), -EFAULT);
  void* block = rdmalloc_heap_malloc(second, 100);
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, block, 100, kRemote, &key), 0);
  ASSERT_EQ(rdmalloc_heap_destroy(second), 0);
  EXPECT_EQ(fabric.live(), 1u);
  rdmalloc_free(ordinary);
  rdmalloc_purge(0);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when regions are joined, or longer than `largest`.
TEST_F(RegisteredHeaps, no_block_crosses_from_one_registration_to_the_next) {
  rdmalloc_domain_attr attr = {};
  attr.largest = 5 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 10 * kMiB);
  ASSERT_EQ(last_error, 0);
  ASSERT_EQ(fabric.live(), 3u) << "4, 4 and 2 MiB";
  for (const StubFabric::Entry& entry : fabric.entries()) EXPECT_LE(entry.length, 5 * kMiB);
  EXPECT_EQ(rdmalloc_heap_malloc(heap, 5 * kMiB), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  Random random(9);
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (int round = 0; round < 20; ++round) {
    for (;;) {
      std::size_t bytes = random.size_between(kKiB, 2 * kMiB);
      void* block = rdmalloc_heap_malloc(heap, bytes);
      if (block == nullptr) break;
      blocks.emplace_back(block, bytes);
      rdmalloc_key key = {};
      ASSERT_EQ(rdmalloc_reg_key(domain.handle, block, bytes, kRemote, &key), 0);
      ASSERT_TRUE(reaches(fabric, key, block, bytes));
      rdmalloc_key same = {};
      ASSERT_EQ(rdmalloc_heap_key(heap, 0, block, bytes, &same), 0);
      ASSERT_EQ(same.generation, key.generation);
    }
    for (auto [block, bytes] : blocks) rdmalloc_free(block);
    blocks.clear();
  }
  EXPECT_EQ(fabric.calls, 3u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(make({domain.handle}, 65 * 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -EMSGSIZE);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when what is freed is not found again, or grow does not enter its regions.
TEST_F(RegisteredHeaps, the_budget_is_memory_and_grows_by_call_only) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 3 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(counters(heap).budget_bytes, 4 * kMiB) << "rounded up to 2 MiB";
  std::vector<void*> blocks = fill(heap);
  EXPECT_EQ(blocks.size(), 32u) << "two slices each";
  EXPECT_EQ(counters(heap).span_bytes, 4 * kMiB);
  EXPECT_GT(counters(heap).refusals, 0u);
  EXPECT_EQ(fabric.calls, 1u);
  ASSERT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0);
  EXPECT_EQ(fabric.live(), 2u);
  std::vector<void*> more = fill(heap);
  EXPECT_EQ(more.size(), 16u);
  rdmalloc_key key = {};
  for (void* block : more) EXPECT_EQ(rdmalloc_heap_key(heap, 0, block, 100 * kKiB, &key), 0);
  EXPECT_EQ(region(heap, 1).length, 2 * kMiB);
  EXPECT_EQ(counters(heap).region_bytes, 6 * kMiB);
  EXPECT_EQ(counter("stats.heap_region_bytes"), 6 * kMiB);
  EXPECT_EQ(counter("stats.registered_heaps"), 1u);
  for (void* block : blocks) rdmalloc_free(block);
  EXPECT_EQ(fill(heap, 60 * kKiB).size(), 64u);
  EXPECT_EQ(fabric.calls, 2u);
  rdmalloc_heap* ordinary = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(nullptr, &ordinary), 0);
  EXPECT_EQ(rdmalloc_heap_grow(ordinary, kMiB), -EINVAL);
  EXPECT_EQ(rdmalloc_heap_destroy(ordinary), 0);
  // A refusal leaves it as it was.
  fabric.capacity_bytes = 7 * kMiB;
  EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), -ENOMEM);
  EXPECT_EQ(counters(heap).budget_bytes, 6 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(counter("stats.heap_region_bytes"), 0u);
}

// Fails when a region's lists lose a piece at a cut, a growth or a shrink.
TEST_F(RegisteredHeaps, blocks_grow_shrink_and_align_within_it) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 16 * kMiB);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 100 * kKiB));
  std::memset(block, 5, 100 * kKiB);
  for (std::size_t bytes = 200 * kKiB; bytes <= 6 * kMiB; bytes += 100 * kKiB) {
    block = static_cast<char*>(rdmalloc_heap_realloc(heap, block, bytes));
    ASSERT_NE(block, nullptr) << bytes;
    ASSERT_EQ(block[100 * kKiB - 1], 5);
    ASSERT_TRUE(fabric.touches(block, bytes));
  }
  block = static_cast<char*>(rdmalloc_heap_realloc(heap, block, 70 * kKiB));
  EXPECT_EQ(counters(heap).span_bytes, 128 * kKiB);
  for (std::size_t alignment : {64 * kKiB, kMiB, 2 * kMiB, 4 * kMiB}) {
    void* aligned = rdmalloc_heap_aligned(heap, alignment, 300 * kKiB);
    ASSERT_NE(aligned, nullptr) << alignment;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % alignment, 0u);
    rdmalloc_free(aligned);
  }
  auto* zeroed = static_cast<char*>(rdmalloc_heap_calloc(heap, 1, 5 * kMiB));
  ASSERT_NE(zeroed, nullptr);
  EXPECT_EQ(std::count(zeroed, zeroed + 5 * kMiB, 0), static_cast<std::ptrdiff_t>(5 * kMiB));
  rdmalloc_free(zeroed);
  rdmalloc_free(block);
  EXPECT_NE(rdmalloc_heap_malloc(heap, 16 * kMiB), nullptr) << "the pieces are not one again";
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when a refused create keeps its memory, its place, or the first domain's registration.
TEST_F(RegisteredHeaps, I12_what_is_refused_leaves_nothing_behind) {
  StubFabric inexact(RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG), poor;
  poor.capacity_bytes = kMiB;
  StubDomain domain(fabric), without_exactness(inexact), small(poor);
  std::uint64_t used = counter("stats.used_bytes");
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(make({domain.handle, small.handle}, 4 * kMiB), nullptr);
    ASSERT_EQ(last_error, -ENOMEM);
  }
  EXPECT_EQ(fabric.leaves, 100u);
  // In the middle, with a region there.
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  StubFabric half;
  half.capacity_bytes = 3 * kMiB;
  StubDomain short_of_it(half, attr);
  EXPECT_EQ(make({short_of_it.handle}, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  EXPECT_EQ(half.live(), 0u);
  EXPECT_EQ(half.leaves, 1u);
  make({domain.handle}, 0);
  EXPECT_EQ(last_error, -EINVAL) << "no budget";
  make({domain.handle, domain.handle}, kMiB);
  EXPECT_EQ(last_error, -EINVAL);
  make({nullptr}, kMiB);
  EXPECT_EQ(last_error, -EINVAL);
  make({domain.handle}, kMiB, 0x100);
  EXPECT_EQ(last_error, -EINVAL);
  make({without_exactness.handle}, kMiB);
  EXPECT_EQ(last_error, -EACCES);
  make({domain.handle}, std::size_t{1} << 50);
  EXPECT_EQ(last_error, -ENOMEM);
  EXPECT_EQ(fabric.live() + poor.live() + inexact.live(), 0u);
  EXPECT_EQ(counter("stats.used_bytes"), used);
  // A heap with local rights needs no exactness.
  rdmalloc_heap* heap = make({without_exactness.handle}, kMiB, 0);
  ASSERT_EQ(last_error, 0);
  rdmalloc_key key = {};
  void* block = rdmalloc_heap_malloc(heap, 10);
  EXPECT_EQ(rdmalloc_reg_key(without_exactness.handle, block, 10, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_EQ(rdmalloc_reg_key(without_exactness.handle, block, 10, kRemote, &key), -EACCES);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

TEST_F(RegisteredHeaps, a_limit_of_a_domain_refuses_it_and_counts_it) {
  rdmalloc_domain_attr attr = {};
  attr.max_bytes = 6 * kMiB;
  StubDomain domain(fabric, attr);
  EXPECT_EQ(make({domain.handle}, 8 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  // Idle ones give way to it.
  void* idle = rdmalloc_malloc(4 * kMiB);
  ASSERT_NE(domain.touch(idle, 4 * kMiB), 0u);
  rdmalloc_heap* heap = make({domain.handle}, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(domain.counters().evictions, 1u);
  EXPECT_EQ(domain.counters().live_bytes, 4 * kMiB);
  // It is never evicted: fails when it is listed with the idle ones.
  EXPECT_EQ(domain.touch(idle, 4 * kMiB), 0u);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 0);
  EXPECT_EQ(fabric.live(), 1u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  rdmalloc_free(idle);
}

// Fails when the heap's reference is not counted.
TEST_F(RegisteredHeaps, a_domain_does_not_close_before_its_heaps) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, kMiB);
  EXPECT_EQ(domain.close(), -EBUSY);
  rdmalloc_key key = {};
  void* block = rdmalloc_heap_malloc(heap, 10);
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, block, 10, kRemote, &key), 0) << "nothing changed";
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(domain.close(), 0);
  EXPECT_EQ(fabric.closes, 1);
}

// Fails when destroy does not look who else holds it, or does not open again what it closed.
TEST_F(RegisteredHeaps, a_heap_whose_registration_is_held_is_not_destroyed) {
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 4 * kMiB);
  ASSERT_EQ(fabric.live(), 2u);
  std::vector<void*> blocks = fill(heap);
  for (void* block : {blocks.front(), blocks.back()}) {
    rdmalloc_reg* held = domain.get(block, 10, kRemote);
    ASSERT_NE(held, nullptr);
    EXPECT_EQ(rdmalloc_heap_destroy(heap), -EBUSY);
    EXPECT_EQ(fabric.live(), 2u);
    rdmalloc_key key = {};
    for (void* each : blocks)
      EXPECT_EQ(rdmalloc_reg_key(domain.handle, each, 10, kRemote | RDMALLOC_NO_REGISTER, &key), 0);
    rdmalloc_reg_put(held);
  }
  EXPECT_EQ(fabric.calls, 2u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when what is free in a region is offered to purges.
TEST_F(RegisteredHeaps, I3_pages_stay_until_the_heap_is_deregistered_and_go_then) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 8 * kMiB);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 5 * kMiB));
  std::memset(block, 0x5c, 5 * kMiB);
  rdmalloc_free(block);
  ASSERT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(block[3 * kMiB], 0x5c) << "purged under a registration";
  EXPECT_EQ(domain.counters().purge_refusals, 0u) << "offered at all";
  EXPECT_EQ(rdmalloc_invalidate(nullptr, block, 100, nullptr, nullptr), 0);
  EXPECT_EQ(fabric.live(), 1u);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  ASSERT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(block[3 * kMiB], 0);
}

// Seen to fail when an invalidation counts what is being made for a heap: its `done` came at the
// heap's end.
TEST_F(RegisteredHeaps, an_invalidation_passes_by_what_is_being_made_for_a_heap) {
  StubDomain domain(fabric);
  int done = 0;
  std::int64_t count = -1;
  fabric.before_enter = [&](void* addr, std::size_t length) {
    count = rdmalloc_invalidate(
        domain.handle, addr, length, [](void* arg) { ++*static_cast<int*>(arg); }, &done);
    return 0;
  };
  rdmalloc_heap* heap = make({domain.handle}, 4 * kMiB);
  fabric.before_enter = nullptr;
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(done, 1);
  void* block = rdmalloc_heap_malloc(heap, 100);
  EXPECT_NE(domain.touch(block, 100, kRemote), 0u) << "its keys are right";
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(done, 1);
}

// Fails when such memory goes back to the others.
TEST_F(RegisteredHeaps, I13_memory_that_could_not_be_deregistered_stays_out_of_reach) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 4 * kMiB);
  auto* base = static_cast<char*>(region(heap, 0).base);
  ASSERT_NE(rdmalloc_heap_malloc(heap, kMiB), nullptr);
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  fabric.before_leave = nullptr;
  EXPECT_EQ(domain.counters().quarantined, 1u);
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) {
    blocks.push_back(rdmalloc_malloc(100 * kKiB));
    auto* begin = static_cast<char*>(blocks.back());
    EXPECT_TRUE(begin + 100 * kKiB <= base || begin >= base + 4 * kMiB);
  }
  for (void* block : blocks) rdmalloc_free(block);
  rdmalloc_purge(0);
  EXPECT_EQ(domain.close(), 0);
}

// Fails when such memory goes back to the others.
TEST_F(RegisteredHeaps, I13_memory_that_half_a_create_registered_stays_out_of_reach) {
  StubFabric poor;
  poor.capacity_bytes = kMiB;
  StubDomain domain(fabric), small(poor);
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  EXPECT_EQ(make({domain.handle, small.handle}, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  fabric.before_leave = nullptr;
  ASSERT_EQ(fabric.live(), 1u);
  EXPECT_EQ(domain.counters().quarantined, 1u);
  StubFabric::Entry left = fabric.entries()[0];
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) {
    blocks.push_back(rdmalloc_malloc(100 * kKiB));
    auto* begin = static_cast<char*>(blocks.back());
    EXPECT_TRUE(begin + 100 * kKiB <= left.base || begin >= left.base + left.length);
  }
  for (void* block : blocks) rdmalloc_free(block);
  EXPECT_EQ(domain.close(), 0);
}

// A caller gets a registration of the first region, by an address that it has no block at, while
// the second one is refused.
class HeldAmid : public RegisteredHeaps {
 protected:
  HeldAmid() {
    rdmalloc_domain_attr attr = {};
    attr.largest = 2 * kMiB;
    domain.emplace(fabric, attr);
  }
  // From here on the next region is registered and held, and the one after it refused.
  void hold_the_next() {
    next = nullptr;
    fabric.before_enter = [this](void* base, std::size_t) {
      if (next == nullptr) return next = base, 0;
      std::thread([this] { held = domain->get(next, 10, kRemote); }).join();
      return -ENOMEM;
    };
  }
  // No block lies where that registration is, as long as it is there.
  void expect_kept_until_the_put() {
    std::vector<void*> blocks;
    for (int i = 0; i < 200; ++i) {
      blocks.push_back(rdmalloc_malloc(100 * kKiB));
      EXPECT_FALSE(fabric.touches(blocks.back(), 100 * kKiB));
    }
    for (void* block : blocks) rdmalloc_free(block);
    rdmalloc_reg_put(held);
    // Any call that unmakes something ends the heap first.
    EXPECT_EQ(domain->close(), 0);
    EXPECT_EQ(fabric.live(), 0u);
  }
  std::optional<StubDomain> domain;
  void* next = nullptr;
  rdmalloc_reg* held = nullptr;
};

// Fails when what end() says is ignored: others' blocks lie in the registration, and the domain
// never closes.
TEST_F(HeldAmid, I13_a_create_that_fails_keeps_the_memory_until_the_put) {
  hold_the_next();
  EXPECT_EQ(make({domain->handle}, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  ASSERT_NE(held, nullptr) << domain->last_error;
  fabric.before_enter = nullptr;
  expect_kept_until_the_put();
}

// Fails when the registration is dropped while it is held.
TEST_F(HeldAmid, I13_a_region_that_another_domain_refuses_is_kept_too) {
  StubFabric poor;
  StubDomain other(poor);
  poor.before_enter = [this](void* base, std::size_t) {
    std::thread([this, base] { held = domain->get(base, 10, kRemote); }).join();
    return -ENOMEM;
  };
  EXPECT_EQ(make({domain->handle, other.handle}, 2 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  ASSERT_NE(held, nullptr) << domain->last_error;
  EXPECT_EQ(fabric.live(), 1u);
  expect_kept_until_the_put();
}

// Fails likewise.
TEST_F(HeldAmid, I13_a_grow_that_fails_keeps_the_memory_until_the_heaps_end) {
  rdmalloc_heap* heap = make({domain->handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  hold_the_next();
  EXPECT_EQ(rdmalloc_heap_grow(heap, 4 * kMiB), -ENOMEM);
  ASSERT_NE(held, nullptr) << domain->last_error;
  fabric.before_enter = nullptr;
  EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0);
  EXPECT_EQ(counters(heap).budget_bytes, 4 * kMiB);
  auto* kept = static_cast<char*>(next);
  for (void* block : fill(heap)) {
    EXPECT_TRUE(block < kept || block >= kept + 2 * kMiB);
    rdmalloc_key key = {};
    EXPECT_EQ(rdmalloc_heap_key(heap, 0, block, 10, &key), 0);
    EXPECT_TRUE(reaches(fabric, key, block, 10));
  }
  EXPECT_EQ(rdmalloc_heap_destroy(heap), -EBUSY);
  rdmalloc_reg_put(held);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when there is no end to what a heap may be called by.
TEST_F(RegisteredHeaps, there_are_64_at_once_and_any_number_one_after_the_other) {
  StubDomain domain(fabric);
  std::vector<rdmalloc_heap*> heaps;
  for (int i = 0; i < 64; ++i) {
    heaps.push_back(make({domain.handle}, 2 * kMiB));
    ASSERT_EQ(last_error, 0);
  }
  EXPECT_EQ(make({domain.handle}, 2 * kMiB), nullptr);
  EXPECT_EQ(last_error, -EMFILE);
  for (rdmalloc_heap* heap : heaps) EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  for (int i = 0; i < 300; ++i) {
    rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
    ASSERT_EQ(last_error, 0);
    EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  }
  EXPECT_EQ(fabric.leaves, 364u);
}

// TSan looks on: keys asked for while other threads allocate, free each other's blocks, make and
// destroy heaps, and purge.
TEST_F(RegisteredHeaps, threads_share_heaps_and_make_their_own) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 32 * kMiB);
  std::atomic<void*> places[64] = {};
  std::atomic<int> wrong{0};
  auto work = [&](int seed) {
    Random random(static_cast<std::uint64_t>(seed));
    for (int step = 0; step < 3000; ++step) {
      std::size_t bytes = random.size_between(1, 100 * kKiB);
      void* block = rdmalloc_heap_malloc(heap, bytes);
      rdmalloc_key key = {}, same = {};
      if (block == nullptr || rdmalloc_reg_key(domain.handle, block, bytes, kRemote, &key) != 0 ||
          rdmalloc_heap_key(heap, 0, block, bytes, &same) != 0 || key.generation != same.generation)
        ++wrong;
      rdmalloc_free(places[random.below(64)].exchange(block));
      if (step % 500 == 0) {
        rdmalloc_heap_attr attr = rdmalloc_test::registered_heap_attr(&domain.handle, 2 * kMiB);
        rdmalloc_heap* own = nullptr;
        if (rdmalloc_heap_create(&attr, &own) != 0 || rdmalloc_heap_malloc(own, kMiB) == nullptr ||
            rdmalloc_heap_destroy(own) != 0)
          ++wrong;
        rdmalloc_purge(0);
      }
      if (seed == 0 && step == 1000 && rdmalloc_heap_grow(heap, 4 * kMiB) != 0) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  expect_only(heap);
  EXPECT_EQ(fabric.live(), 2u);
  for (auto& place : places) rdmalloc_free(place);
  EXPECT_EQ(counters(heap).live_blocks, 0u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
}

}  // namespace
