// Registered heaps with a page size, or with RDMALLOC_HUGE: on huge pages of the kernel's pool, and
// registered.
#include <cstring>
#include <string>

#include "alloc/os/fault.h"
#include "tests/support/capture.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
#include "tests/support/huge_pool.h"
#include "tests/support/kernel_has.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

using rdmalloc::os::arm_fault;
using rdmalloc::os::Site;
using rdmalloc_test::counter;
using rdmalloc_test::HugePool;
using rdmalloc_test::smaps_kib;

constexpr std::size_t k2M = 2 * kMiB;

class RegisteredPageSizes : public RegisteredHeaps {
 protected:
  rdmalloc_heap* make_huge(rdmalloc_domain* domain, std::size_t budget_bytes) {
    rdmalloc_heap_attr attr =
        rdmalloc_test::registered_heap_attr(&domain, budget_bytes, kRemote, RDMALLOC_PAGE_2M);
    rdmalloc_heap* heap = nullptr;
    last_error = rdmalloc_heap_create(&attr, &heap);
    return heap;
  }
};

// Fails when the budget is not what was taken, when pages are put there after the registration, or
// with pages that are given back before it ends.
TEST_F(RegisteredPageSizes, huge_pages_are_registered_whole_and_deregistered_first) {
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

// ---- checkpoints: the pages stay, the registrations over them are made anew ----

class HugeCheckpoints : public RegisteredPageSizes {
 protected:
  void SetUp() override {
    fabric.ops.quiesce = fabric.ops.resume = [](void*) { return 0; };
    fabric.ops.flags |= RDMALLOC_REGISTRAR_REOPEN;
  }
  // A quiesce and a resume of the heap's only domain.
  void freeze_and_thaw(rdmalloc_heap* heap, const char* page_field) {
    std::vector<void*> blocks = fill(heap);
    ASSERT_FALSE(blocks.empty());
    const rdmalloc_heap_counters before = counters(heap);
    const std::size_t registered = fabric.bytes(), count = fabric.live();
    const rdmalloc_heap_region_info first = region(heap, 0);
    const rdmalloc_key key = first.keys[0];
    const long pages_kib = smaps_kib(first.base, page_field);
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(fabric.live(), 0u);
    EXPECT_GE(smaps_kib(first.base, page_field), pages_kib);
    // The memory is used meanwhile.
    rdmalloc_free(blocks.back());
    blocks.back() = rdmalloc_heap_malloc(heap, 100 * kKiB);
    ASSERT_NE(blocks.back(), nullptr);
    std::memset(blocks.back(), 7, 100 * kKiB);
    rdmalloc_key now = {};
    EXPECT_EQ(rdmalloc_heap_key(heap, 0, blocks[0], 8, &now), -EAGAIN);
    ASSERT_EQ(rdmalloc_resume(), 0);
    EXPECT_EQ(fabric.bytes(), registered);
    EXPECT_EQ(fabric.live(), count);
    EXPECT_EQ(region(heap, 0).base, first.base);
    EXPECT_GT(region(heap, 0).keys[0].generation, key.generation);
    EXPECT_GE(smaps_kib(first.base, page_field), pages_kib);
    const rdmalloc_heap_counters after = counters(heap);
    EXPECT_EQ(after.budget_bytes, before.budget_bytes);
    EXPECT_EQ(after.region_bytes, before.region_bytes);
    EXPECT_EQ(after.huge_bytes, before.huge_bytes);
    for (void* block : blocks) {
      auto* bytes = static_cast<char*>(block);
      ASSERT_EQ(bytes[0] + bytes[100 * kKiB - 1], 14);
      ASSERT_EQ(rdmalloc_heap_key(heap, 0, block, 100 * kKiB, &now), 0);
      EXPECT_TRUE(reaches(fabric, now, block, 100 * kKiB));
    }
    for (void* block : blocks) rdmalloc_free(block);
  }
};

// Fails when a region's pages are dropped before it is registered again, when half of it or every
// second region only is, and without the first.
TEST_F(HugeCheckpoints, I3_a_heap_stays_on_its_pages_of_the_pool) {
  HugePool pool(k2M);
  if (!pool.make_free(6)) GTEST_SKIP() << pool.why_not;
  int on_small_pages = 0;
  fabric.before_enter = [&](void* base, std::size_t) {
    on_small_pages += smaps_kib(base, "KernelPageSize") != 2048;
    return 0;
  };
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make_huge(domain.handle, 8 * kMiB);
  ASSERT_EQ(last_error, 0);
  for (int round = 0; round < 3; ++round) freeze_and_thaw(heap, "KernelPageSize");
  EXPECT_EQ(on_small_pages, 0);
  EXPECT_EQ(pool.free(), 2u);
  // It grows as before.
  ASSERT_EQ(rdmalloc_heap_grow(heap, 4 * kMiB), 0);
  freeze_and_thaw(heap, "KernelPageSize");
  EXPECT_EQ(fabric.bytes(), 12 * kMiB);
  EXPECT_EQ(pool.free(), 0u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(pool.free(), 6u);
}

// Fails as the one before, but for every second region: it has one.
TEST_F(HugeCheckpoints, a_heap_keeps_the_transparent_huge_pages_that_it_has) {
  StubDomain domain(fabric);
  rdmalloc_domain* domains[] = {domain.handle};
  rdmalloc_heap_attr attr =
      rdmalloc_test::registered_heap_attr(domains, 16 * kMiB, kRemote, RDMALLOC_PAGE_THP);
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  if (smaps_kib(region(heap, 0).base, "AnonHugePages") > 0) {
    for (int round = 0; round < 3; ++round) freeze_and_thaw(heap, "AnonHugePages");
  }
  const bool has_any = smaps_kib(region(heap, 0).base, "AnonHugePages") > 0;
  const bool there_are = has_any || rdmalloc_test::gives_huge_pages();
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(has_any, there_are);
  if (!there_are) GTEST_SKIP() << "SKIP: this kernel gave no transparent huge page";
}

// ---- RDMALLOC_HUGE, each test in a process that has it from its start ----

class HugeSetting : public RegisteredHeaps {
 protected:
  // Whether this process has it. Else the test was done in one that has.
  static bool is_here(const std::string& setting) {
    if (getenv("RDMALLOC_HUGE") != nullptr) return true;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    rdmalloc_test::ChildResult result = rdmalloc_test::run_child(
        {"/proc/self/exe", std::string("--gtest_filter=HugeSetting.") + test->name()},
        {.environment = {"RDMALLOC_PURGE=manual", "RDMALLOC_HUGE=" + setting}});
    EXPECT_TRUE(result.clean()) << result.describe();
    std::size_t skip = result.output.find("SKIP:");
    if (skip != std::string::npos)
      [&] { GTEST_SKIP() << result.output.substr(skip, result.output.find('\n', skip) - skip); }();
    return false;
  }
  // The heap, with what was written to standard error in `said`.
  rdmalloc_heap* make_and_listen(rdmalloc_domain* domain, std::size_t budget_bytes) {
    rdmalloc_test::Capture capture;
    rdmalloc_heap* heap = make({domain}, budget_bytes);
    said = capture.end();
    return heap;
  }
  std::string said;
};

// Fails when the setting is not looked at, when it is in a heap that asks for a size, and when what
// a heap's end gives back are not the region's pages.
TEST_F(HugeSetting, a_heap_that_takes_its_memory_whole_gets_pages_of_the_pool) {
  if (!is_here("2M")) return;
  HugePool pool(k2M);
  if (!pool.make_free(9)) GTEST_SKIP() << pool.why_not;
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make_and_listen(domain.handle, 7 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(said, "");
  EXPECT_EQ(counters(heap).huge_bytes, 8 * kMiB);
  EXPECT_EQ(fabric.bytes(), 8 * kMiB);
  EXPECT_EQ(smaps_kib(rdmalloc_heap_malloc(heap, kMiB), "KernelPageSize"), 2048);
  ASSERT_EQ(rdmalloc_heap_grow(heap, kMiB), 0);
  EXPECT_EQ(counters(heap).huge_bytes, 10 * kMiB);
  rdmalloc_heap_attr attr = rdmalloc_test::heap_attr(4 * kMiB);
  attr.numa_node = RDMALLOC_NODE(0);
  rdmalloc_heap *of_node = nullptr, *small = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &of_node), 0);
  EXPECT_EQ(smaps_kib(rdmalloc_heap_malloc(of_node, kMiB), "KernelPageSize"), 2048);
  EXPECT_EQ(counter("stats.heap_huge_2m_bytes"), 14 * kMiB);
  EXPECT_EQ(pool.free(), 2u);
  attr.page_size = RDMALLOC_PAGE_4K;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &small), 0);
  EXPECT_EQ(smaps_kib(rdmalloc_heap_malloc(small, kMiB), "KernelPageSize"), 4);
  for (rdmalloc_heap* one : {heap, of_node, small}) EXPECT_EQ(rdmalloc_heap_destroy(one), 0);
  EXPECT_EQ(pool.free(), 9u);
  EXPECT_EQ(counter("stats.heap_huge_2m_bytes"), 0u);
}

// Fails when the wish is taken for a demand, when what was registered of it stays, and when all of
// a heap is taken for what its first region is.
TEST_F(HugeSetting, too_small_a_pool_means_ordinary_pages_and_one_message) {
  if (!is_here("2M")) return;
  HugePool pool(k2M);
  if (!pool.make_free(3)) GTEST_SKIP() << pool.why_not;
  rdmalloc_domain_attr attr = {};
  attr.largest = 4 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* ordinary = make_and_listen(domain.handle, 12 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_NE(said.find("RDMALLOC_HUGE"), std::string::npos) << said;
  EXPECT_NE(said.find("nr_hugepages"), std::string::npos) << said;
  EXPECT_EQ(counters(ordinary).huge_bytes, 0u);
  EXPECT_EQ(fabric.bytes(), 12 * kMiB);
  EXPECT_EQ(fabric.live(), 3u);
  EXPECT_EQ(pool.free(), 3u);
  for (void* block : fill(ordinary)) {
    rdmalloc_key key = {};
    ASSERT_EQ(rdmalloc_heap_key(ordinary, 0, block, 100 * kKiB, &key), 0);
    EXPECT_TRUE(reaches(fabric, key, block, 100 * kKiB));
  }
  rdmalloc_heap* both = make_and_listen(domain.handle, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  rdmalloc_test::Capture capture;
  ASSERT_EQ(rdmalloc_heap_grow(both, 4 * kMiB), 0);
  EXPECT_EQ(capture.end(), "");
  EXPECT_EQ(counters(both).huge_bytes, 4 * kMiB);
  EXPECT_EQ(counters(both).region_bytes, 8 * kMiB);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(rdmalloc_heap_destroy(both), 0);
  EXPECT_EQ(rdmalloc_heap_destroy(ordinary), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(pool.free(), 3u);
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u);
}

// Fails without the second try for one of them, and with the place among the registered heaps given
// up before it.
TEST_F(HugeSetting, I12_a_heap_is_made_whatever_step_of_the_wish_fails) {
  if (!is_here("2M")) return;
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  StubDomain domain(fabric);
  std::uint64_t used = counter("stats.used_bytes");
  auto try_one = [&](const char* what) {
    rdmalloc_heap* heap = make_and_listen(domain.handle, 8 * kMiB);
    EXPECT_EQ(last_error, 0) << what << " " << said;
    if (heap == nullptr) return;
    EXPECT_EQ(counters(heap).huge_bytes, 0u) << what;
    EXPECT_EQ(fabric.bytes(), 8 * kMiB) << what;
    EXPECT_EQ(pool.free(), 4u) << what;
    fill(heap);
    EXPECT_EQ(rdmalloc_heap_destroy(heap), 0) << what;
    EXPECT_EQ(counter("stats.used_bytes"), used) << what;
    EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u) << what;
  };
  for (Site site : {Site::kMapHuge, Site::kMoveHuge}) {
    arm_fault(site, 1);
    try_one(site_name(site));
  }
  // A region that is given up can't get its plain pages back at once: the heap is elsewhere.
  arm_fault(Site::kMoveHuge, 1);
  arm_fault(Site::kReserveOver, 1);
  rdmalloc_heap* heap = make_and_listen(domain.handle, 8 * kMiB);
  EXPECT_EQ(last_error, 0) << said;
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 8 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(counter("stats.used_bytes"), used);
  ASSERT_EQ(rdmalloc_purge_pause(), 0);
  try_one("a pause");
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  fabric.before_enter = [](void* base, std::size_t) {
    return smaps_kib(base, "KernelPageSize") == 2048 ? -EOPNOTSUPP : 0;
  };
  try_one("a registrar that takes no huge pages");
  fabric.before_enter = nullptr;
  heap = make_and_listen(domain.handle, 8 * kMiB);
  EXPECT_EQ(counters(heap).huge_bytes, 8 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// One region on huge pages, one on ordinary ones. Fails in the four ways above.
TEST_F(HugeSetting, a_checkpoint_leaves_what_the_wish_got) {
  if (!is_here("2M")) return;
  HugePool pool(k2M);
  if (!pool.make_free(3)) GTEST_SKIP() << pool.why_not;
  fabric.ops.quiesce = fabric.ops.resume = [](void*) { return 0; };
  fabric.ops.flags |= RDMALLOC_REGISTRAR_REOPEN;
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make_and_listen(domain.handle, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  rdmalloc_test::Capture capture;
  ASSERT_EQ(rdmalloc_heap_grow(heap, 4 * kMiB), 0);  // for which the pool has too few
  capture.end();
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 3 * kMiB));
  std::memset(block, 7, 3 * kMiB);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(fabric.live(), 0u);
    ASSERT_EQ(rdmalloc_resume(), 0);
    EXPECT_EQ(fabric.bytes(), 8 * kMiB);
    EXPECT_EQ(counters(heap).huge_bytes, 4 * kMiB);
    EXPECT_EQ(counters(heap).region_bytes, 8 * kMiB);
    EXPECT_EQ(counters(heap).budget_bytes, 8 * kMiB);
    EXPECT_EQ(counter("stats.heap_huge_2m_bytes"), 4 * kMiB);
    EXPECT_EQ(smaps_kib(region(heap, 0).base, "KernelPageSize"), 2048);
    EXPECT_EQ(smaps_kib(region(heap, 1).base, "KernelPageSize"), 4);
    EXPECT_EQ(pool.free(), 1u);
    EXPECT_EQ(block[0] + block[3 * kMiB - 1], 14);
  }
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(pool.free(), 3u);
}

// Fails without the look at how much more it would be, and without a second try where a domain
// registers less than a page at once.
TEST_F(HugeSetting, pages_of_1_GiB_are_for_heaps_that_nearly_fill_them) {
  if (!is_here("1G")) return;
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric), narrow(fabric, attr);
  rdmalloc_heap* heap = make_and_listen(domain.handle, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(said, "");
  EXPECT_EQ(counters(heap).region_bytes, 4 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  fabric.capacity_bytes = 0;
  EXPECT_EQ(make_and_listen(narrow.handle, 920 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM) << "of the second try, with ordinary pages";
}

}  // namespace
