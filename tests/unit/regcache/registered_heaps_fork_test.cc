// I11 for registered heaps: what a child of fork finds. Seen to fail; the comments say how.
#include <errno.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/capture.h"
#include "tests/support/heap_attr.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

using rdmalloc_test::Random;

// What a child may do with the heap of its parent. The number of the first step that went wrong.
int use_inherited(rdmalloc_heap* heap, const StubDomain& domain, char* block) {
  rdmalloc_key key = {};
  rdmalloc_heap_region_info info = {};
  info.size = sizeof info;
  if (block[1000] != 0x11) return 1;
  if (rdmalloc_reg_key(domain.handle, block, 10, kRemote, &key) != -ECHILD) return 2;
  if (rdmalloc_heap_key(heap, 0, block, 10, &key) != -ECHILD) return 3;
  if (rdmalloc_heap_region(heap, 0, &info) != -ECHILD) return 4;
  // Seen to fail: it was said that a domain had refused.
  rdmalloc_test::Capture capture;
  if (rdmalloc_heap_grow(heap, kMiB) != -ECHILD) return 5;
  if (capture.end().find("is of the process that this one was forked from") == std::string::npos)
    return 13;
  void* more = rdmalloc_heap_malloc(heap, 2 * kMiB);
  if (more == nullptr) return 6;
  std::memset(more, 1, 2 * kMiB);
  StubFabric own_fabric;
  StubDomain own(own_fabric);
  rdmalloc_heap_attr attr = rdmalloc_test::registered_heap_attr(&own.handle, kMiB);
  rdmalloc_heap* mine = nullptr;
  if (rdmalloc_heap_create(&attr, &mine) != 0) return 7;
  if (rdmalloc_heap_destroy(heap) != 0) return 8;
  void* here = rdmalloc_heap_malloc(mine, 10);
  if (rdmalloc_heap_key(mine, 0, here, 10, &key) != 0) return 9;
  if (own_fabric.live() != 1) return 10;
  if (rdmalloc_heap_destroy(mine) != 0 || own_fabric.live() != 0) return 11;
  return rdmalloc::page_heap_is_valid() ? 0 : 12;
}

// Fails when the places of heaps are not wiped on fork, or destroy ends whatever has its place.
TEST_F(RegisteredHeaps, I11_a_child_has_the_memory_and_no_registration) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 4 * kMiB);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, kMiB));
  std::memset(block, 0x11, kMiB);
  EXPECT_EQ(in_child([&] {
              int wrong = use_inherited(heap, domain, block);
              return wrong != 0 ? wrong : fabric.calls != 1 || fabric.leaves != 0 ? 20 : 0;
            }),
            0);
  rdmalloc_key key = {};
  EXPECT_EQ(rdmalloc_reg_key(domain.handle, block, 10, kRemote, &key), 0) << "the parent's";
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when the child's lists of what is free in a region are the parent's in the middle of a
// change, or when a span on its way becomes malloc's.
TEST_F(RegisteredHeaps, I11_a_fork_in_the_middle_of_others_calls_leaves_a_whole_heap) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 16 * kMiB);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      Random random(static_cast<std::uint64_t>(i) + 50);
      while (!stop) {
        void* block = rdmalloc_heap_malloc(heap, random.size_between(100, 500 * kKiB));
        void* other = rdmalloc_heap_malloc(heap, random.size_between(40 * kKiB, 900 * kKiB));
        rdmalloc_free(block);
        rdmalloc_free(rdmalloc_heap_realloc(heap, other, random.size_between(40 * kKiB, kMiB)));
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    int wrong = in_child([&] {
      void* blocks[60] = {};
      Random random(static_cast<std::uint64_t>(i));
      for (int step = 0; step < 300; ++step) {
        void*& block = blocks[random.below(60)];
        rdmalloc_free(block);
        block = rdmalloc_heap_malloc(heap, random.size_between(1, 200 * kKiB));
        if (block == nullptr) return 1;
      }
      for (void* block : blocks) rdmalloc_free(block);
      if (!rdmalloc::page_heap_is_valid()) return 2;
      if (rdmalloc_heap_destroy(heap) != 0) return 3;
      return rdmalloc::page_heap_is_valid() ? 0 : 4;
    });
    ASSERT_EQ(wrong, 0) << "fork " << i;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when the child that makes the heap's end whole leaves it to its own children to do again:
// the record is free twice there, and two heaps have it.
TEST_F(RegisteredHeaps, I11_a_heap_that_another_thread_was_ending_ends_once) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  RegistrarGate gate;
  fabric.before_leave = [&](void*, std::size_t) { return gate.pass(); };
  std::thread ender([heap] { EXPECT_EQ(rdmalloc_heap_destroy(heap), 0); });
  gate.wait_until_inside();
  auto has_two_heaps = [] {
    rdmalloc_heap *one = nullptr, *two = nullptr;
    if (rdmalloc_heap_create(nullptr, &one) != 0) return 1;
    if (rdmalloc_heap_create(nullptr, &two) != 0) return 2;
    if (rdmalloc_heap_malloc(one, 10) == nullptr) return 3;
    return rdmalloc_heap_malloc(two, 10) != nullptr ? 0 : 4;
  };
  EXPECT_EQ(in_child([&] {
              rdmalloc_free(rdmalloc_malloc(kMiB));
              return in_child(has_two_heaps);
            }),
            0);
  gate.open();
  ender.join();
}

// Fails when the heap stays that thread's: each grow would be -EBUSY.
TEST_F(RegisteredHeaps, I11_what_another_thread_was_growing_is_the_childs) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  RegistrarGate gate;
  fabric.before_enter = [&](void*, std::size_t) { return gate.pass(); };
  std::thread grower([heap] { EXPECT_EQ(rdmalloc_heap_grow(heap, 2 * kMiB), 0); });
  gate.wait_until_inside();
  EXPECT_EQ(in_child([heap] { return -rdmalloc_heap_grow(heap, 2 * kMiB); }), ECHILD);
  gate.open();
  grower.join();
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

}  // namespace
