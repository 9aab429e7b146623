// Registered heaps with a page size: on huge pages of the kernel's pool, and registered.
#include <cstring>

#include "tests/support/counters.h"
#include "tests/support/huge_pool.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::HugePool;
using rdmalloc_test::smaps_kib;

constexpr std::size_t k2M = 2 * kMiB;

class RegisteredPageSizes : public RegisteredHeaps {
 protected:
  rdmalloc_heap* make_huge(rdmalloc_domain* domain, std::size_t budget_bytes) {
    rdmalloc_heap_attr attr = {};
    attr.size = sizeof attr;
    attr.budget_bytes = budget_bytes;
    attr.domains = &domain;
    attr.domain_count = 1;
    attr.access = kRemote;
    attr.page_size = RDMALLOC_PAGE_2M;
    rdmalloc_heap* heap = nullptr;
    last_error = rdmalloc_heap_create(&attr, &heap);
    return heap;
  }
};

// Fails when the budget is not what was taken, when pages are put there after the registration, or
// with pages that are given back before it ends.
TEST_F(RegisteredPageSizes, huge_pages_are_registered_whole_and_deregistered_before_they_go) {
  HugePool pool(k2M);
  if (!pool.make_free(6)) GTEST_SKIP() << pool.why_not;
  int on_small_pages = 0;
  auto look = [&](void* base, std::size_t) {
    on_small_pages += smaps_kib(base, "KernelPageSize") != 2048;
    return 0;
  };
  fabric.before_enter = fabric.before_leave = look;
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make_huge(domain.handle, 7 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(counters(heap).budget_bytes, 8 * kMiB);
  EXPECT_EQ(fabric.bytes(), 8 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region(heap, 0).base) % k2M, 0u);
  for (void* block : fill(heap)) {
    rdmalloc_key key = {};
    ASSERT_EQ(rdmalloc_heap_key(heap, 0, block, 100 * kKiB, &key), 0);
    EXPECT_TRUE(reaches(fabric, key, block, 100 * kKiB));
  }
  expect_only(heap);
  ASSERT_EQ(rdmalloc_heap_grow(heap, 3 * kMiB), 0);
  EXPECT_EQ(fabric.bytes(), 12 * kMiB);
  EXPECT_EQ(pool.free(), 0u);
  EXPECT_EQ(rdmalloc_heap_grow(heap, 1), -ENOMEM);
  EXPECT_EQ(fabric.bytes(), 12 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(on_small_pages, 0);
  EXPECT_EQ(pool.free(), 6u);
}

// Fails when a heap's earlier regions are forgotten after a refusal.
TEST_F(RegisteredPageSizes, I12_a_refused_registration_gives_the_huge_pages_back) {
  HugePool pool(k2M);
  if (!pool.make_free(8)) GTEST_SKIP() << pool.why_not;
  rdmalloc_domain_attr attr = {};
  attr.largest = 4 * kMiB;
  StubDomain domain(fabric, attr);
  fabric.capacity_bytes = 8 * kMiB;
  EXPECT_EQ(make_huge(domain.handle, 16 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(pool.free(), 8u);
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u);
  rdmalloc_heap* heap = make_huge(domain.handle, 8 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(fabric.live(), 2u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// What a registrar could not take back stays where it is, on its pages. Fails when those are
// exchanged.
TEST_F(RegisteredPageSizes, I3_pages_that_stay_registered_stay_there) {
  HugePool pool(k2M);
  if (!pool.make_free(2)) GTEST_SKIP() << pool.why_not;
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make_huge(domain.handle, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 3 * kMiB));
  std::memset(block, 7, 3 * kMiB);
  fabric.before_leave = [](void*, std::size_t) { return -EIO; };
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  rdmalloc_purge(0);
  EXPECT_EQ(smaps_kib(block, "KernelPageSize"), 2048);
  EXPECT_EQ(block[3 * kMiB - 1], 7);
  EXPECT_EQ(pool.free(), 0u);
  fabric.before_leave = nullptr;
}

}  // namespace
