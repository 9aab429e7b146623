// SPDX-License-Identifier: BSD-3-Clause
//
// Heaps with a page size of their own. Those of the kernel's pools need huge pages to be set aside:
// as root the tests do it themselves. What a page really is the kernel says, in /proc/self/smaps.
// RDMALLOC_PURGE=manual, so that every exchange of pages is ours.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/purge_turn.h"
#include "tests/support/capture.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
#include "tests/support/huge_pool.h"
#include "tests/support/kernel_has.h"
#include "tests/support/observer.h"
#include "tests/support/process.h"
#include "tests/unit/heaps/fixture.h"

namespace {

using rdmalloc::os::arm_fault;
using rdmalloc::os::Site;
using rdmalloc_test::counter;
using rdmalloc_test::HugePool;
using rdmalloc_test::kKiB;
using rdmalloc_test::kMiB;
using rdmalloc_test::smaps_field;
using rdmalloc_test::smaps_kib;

constexpr size_t k2M = 2 * kMiB, k1G = 1024 * kMiB;

class HeapPageSizes : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(counter("stats.heaps"), 0u);
    EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u);
    EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  }
  // The error is in last_error, what was said in `said`.
  rdmalloc_heap* make(uint32_t page_size, size_t budget_bytes) {
    rdmalloc_heap_attr attr = rdmalloc_test::heap_attr(budget_bytes, page_size);
    rdmalloc_heap* heap = nullptr;
    rdmalloc_test::Capture capture;
    last_error = rdmalloc_heap_create(&attr, &heap);
    said = capture.end();
    return heap;
  }
  bool says(const std::string& words) const { return said.find(words) != std::string::npos; }
  static rdmalloc_heap_counters counters(rdmalloc_heap* heap) {
    rdmalloc_heap_counters now = {};
    now.size = sizeof now;
    EXPECT_EQ(rdmalloc_heap_stats(heap, &now), 0);
    return now;
  }
  int last_error = 0;
  std::string said;
};

// Seen to fail: with the new pages left at their first place, and with regions that are retired and
// never restored.
TEST_F(HeapPageSizes, a_heap_of_2_MiB_pages_is_made_of_them_and_gives_all_back) {
  HugePool pool(k2M);
  if (!pool.make_free(5)) GTEST_SKIP() << pool.why_not;
  uint64_t used = counter("stats.used_bytes");
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_2M, 5 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  EXPECT_EQ(pool.free(), 2u);
  EXPECT_EQ(counters(heap).budget_bytes, 6 * kMiB);
  EXPECT_EQ(counters(heap).huge_bytes, 6 * kMiB);
  EXPECT_EQ(counter("stats.heap_huge_2m_bytes"), 6 * kMiB);
  EXPECT_EQ(counter("stats.heap_huge_1g_bytes"), 0u);
  std::vector<char*> blocks;
  for (size_t bytes : {size_t{100}, 3 * kKiB, 200 * kKiB, 2 * kMiB, kMiB}) {
    auto* block = static_cast<char*>(rdmalloc_heap_calloc(heap, 1, bytes));
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(smaps_kib(block, "KernelPageSize"), 2048);
    EXPECT_EQ(block[bytes - 1], 0);
    memset(block, 5, bytes);
    blocks.push_back(block);
  }
  EXPECT_EQ(rdmalloc_heap_malloc(heap, 4 * kMiB), nullptr) << "its budget is its memory";
  ASSERT_EQ(rdmalloc_heap_grow(heap, kMiB), 0);
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(counters(heap).budget_bytes, 8 * kMiB);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(pool.free(), 5u);
  EXPECT_EQ(counter("stats.used_bytes"), used);
  EXPECT_EQ(counter("stats.heap_huge_2m_bytes"), 0u);
  for (char* block : blocks) {
    EXPECT_EQ(smaps_kib(block, "KernelPageSize"), 4);
    EXPECT_EQ(*block, 0) << "the addresses are the arena's again";
  }
  void* ordinary = rdmalloc_malloc(8 * kMiB);
  memset(ordinary, 1, 8 * kMiB);
  rdmalloc_free(ordinary);
}

// Seen to fail: with the alignment left at 2 MiB (the kernel refuses the move).
TEST_F(HeapPageSizes, a_heap_of_1_GiB_pages_is_made_of_them_and_gives_all_back) {
  HugePool pool(k1G);
  if (!pool.make_free(1)) GTEST_SKIP() << pool.why_not;
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_1G, 3 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  EXPECT_EQ(pool.free(), 0u);
  EXPECT_EQ(counters(heap).budget_bytes, k1G);
  EXPECT_EQ(counter("stats.heap_huge_1g_bytes"), k1G);
  void* block = rdmalloc_heap_malloc(heap, 700 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(smaps_kib(block, "KernelPageSize"), 1024 * 1024);
  memset(block, 5, 700 * kMiB);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(pool.free(), 1u);
}

// Without a page size large memory is of transparent huge pages, the control. Seen to fail: with
// the advice left out, once for each kind, and not given again at the end.
TEST_F(HeapPageSizes, small_and_transparent_huge_pages_can_be_had_for_certain) {
  char* control = static_cast<char*>(rdmalloc_malloc(128 * kMiB));
  memset(control + 64 * kMiB, 1, 16 * kMiB);
  if (smaps_kib(control + 64 * kMiB, "AnonHugePages") < 16 * 1024) {
    const bool there_are = rdmalloc_test::gives_huge_pages();
    rdmalloc_free(control);
    ASSERT_FALSE(there_are) << "large memory has none";
    GTEST_SKIP() << "SKIP: this kernel gives no transparent huge pages";
  }
  rdmalloc_heap* small = make(RDMALLOC_PAGE_4K, 8 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  void* block = rdmalloc_heap_malloc(small, 6 * kMiB);
  EXPECT_EQ(smaps_kib(block, "AnonHugePages"), 0);
  // Also where the kernel gives huge ones unasked.
  EXPECT_NE(smaps_field(block, "VmFlags").find(" nh "), std::string::npos);
  EXPECT_GE(smaps_kib(block, "Rss"), 8 * 1024) << "backed when it is made";
  EXPECT_EQ(counters(small).huge_bytes, 0u);
  rdmalloc_heap* huge = make(RDMALLOC_PAGE_THP, 8 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  EXPECT_GE(smaps_kib(rdmalloc_heap_malloc(huge, 6 * kMiB), "AnonHugePages"), 8 * 1024);
  ASSERT_EQ(rdmalloc_heap_destroy(small), 0);
  ASSERT_EQ(rdmalloc_heap_destroy(huge), 0);
  rdmalloc_free(control);
  // The addresses are ordinary again.
  void* all = rdmalloc_malloc(256 * kMiB);
  memset(all, 1, 256 * kMiB);
  EXPECT_EQ(smaps_kib(block, "AnonHugePages") % 2048, 0);
  EXPECT_GT(smaps_kib(block, "AnonHugePages"), 0);
  rdmalloc_free(all);
}

TEST_F(HeapPageSizes, I12_too_small_a_pool_is_reported_with_the_line_that_mends_it) {
  HugePool pool(k2M);
  if (!pool.make_free(1)) GTEST_SKIP() << pool.why_not;
  uint64_t used = counter("stats.used_bytes"), others = pool.pages() - 1;
  EXPECT_EQ(make(RDMALLOC_PAGE_2M, 6 * kMiB), nullptr);
  EXPECT_EQ(last_error, -ENOMEM);
  EXPECT_TRUE(says("3 huge pages of 2097152 bytes are needed and 1 are free")) << said;
  EXPECT_TRUE(says("echo " + std::to_string(others + 3) +
                   " > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"))
      << said;
  EXPECT_EQ(counter("stats.used_bytes"), used);
  EXPECT_EQ(pool.free(), 1u);
  ASSERT_TRUE(pool.make_free(3)) << pool.why_not;
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_2M, 6 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

TEST_F(HeapPageSizes, other_sizes_and_a_missing_budget_are_refused) {
  EXPECT_EQ(make(12345, 8 * kMiB), nullptr);
  EXPECT_EQ(last_error, -EINVAL);
  EXPECT_TRUE(says("12345") && says("RDMALLOC_PAGE_2M")) << said;
  EXPECT_EQ(make(RDMALLOC_PAGE_2M, 0), nullptr);
  EXPECT_EQ(last_error, -EINVAL);
  EXPECT_TRUE(says("budget_bytes")) << said;
}

// Seen to fail: with the staged pages not unmapped after a refused exchange, and without the
// restoration in regions_add().
TEST_F(HeapPageSizes, I12_nothing_is_lost_when_the_kernel_refuses_any_of_the_steps) {
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  uint64_t used = counter("stats.used_bytes");
  struct {
    Site site;
    uint32_t page_size;
    bool is_needed;
  } cases[] = {
      {Site::kMapHuge, RDMALLOC_PAGE_2M, true},      {Site::kMoveHuge, RDMALLOC_PAGE_2M, true},
      {Site::kDecommit, RDMALLOC_PAGE_2M, false},    {Site::kPopulate, RDMALLOC_PAGE_2M, false},
      {Site::kReserveOver, RDMALLOC_PAGE_THP, true}, {Site::kCommit, RDMALLOC_PAGE_THP, true},
      {Site::kAdviseHuge, RDMALLOC_PAGE_THP, false},
  };
  for (auto& [site, page_size, is_needed] : cases) {
    // Addresses that are committed already, so that the next commit is the exchange's.
    rdmalloc_free(rdmalloc_malloc(32 * kMiB));
    ASSERT_GE(rdmalloc_purge(0), 0);
    arm_fault(site, 1);
    rdmalloc_heap* heap = make(page_size, 8 * kMiB);
    EXPECT_EQ(last_error, is_needed ? -ENOMEM : 0) << site_name(site) << " " << said;
    if (heap != nullptr) {
      EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
    }
    EXPECT_EQ(pool.free(), 4u) << site_name(site);
    EXPECT_EQ(counter("stats.used_bytes"), used) << site_name(site);
    EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u) << site_name(site);
  }
}

// Pages of the pool are mapped and moved in pieces, here of 2 MiB: Linux refuses to move some
// lengths from 4 GiB on.
class PiecesOf2MiB {
 public:
  PiecesOf2MiB() { rdmalloc::os::huge_piece_bytes = k2M; }
  ~PiecesOf2MiB() { rdmalloc::os::huge_piece_bytes = before_; }

 private:
  size_t before_ = rdmalloc::os::huge_piece_bytes;
};

// Seen to fail: with one mapping for all pieces, which then are parts of it: the reservation of
// pages that are not backed is lost.
TEST_F(HeapPageSizes, pages_of_a_pool_stay_reserved_when_they_come_in_pieces) {
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  PiecesOf2MiB pieces;
  arm_fault(Site::kPopulate, 1);
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_2M, 6 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  EXPECT_EQ(pool.free(), 1u);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 5 * kMiB));
  ASSERT_NE(block, nullptr);
  for (size_t at = 0; at < 5 * kMiB; at += k2M) {
    EXPECT_EQ(smaps_kib(block + at, "KernelPageSize"), 2048);
    EXPECT_EQ(block[at], 0);
    block[at] = 1;
  }
  EXPECT_EQ(pool.free(), 1u);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(pool.free(), 4u);
  EXPECT_EQ(smaps_kib(block, "KernelPageSize"), 4);
}

// Seen to fail: with the pieces that were not moved left at their first place.
TEST_F(HeapPageSizes, I12_a_piece_that_is_refused_gives_the_others_back) {
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  PiecesOf2MiB pieces;
  uint64_t used = counter("stats.used_bytes");
  for (Site site : {Site::kMapHuge, Site::kMoveHuge})
    for (uint64_t nth : {1, 2, 4}) {
      arm_fault(site, nth);
      EXPECT_EQ(make(RDMALLOC_PAGE_2M, 8 * kMiB), nullptr);
      EXPECT_EQ(last_error, -ENOMEM) << said;
      EXPECT_EQ(pool.free(), 4u) << site_name(site) << nth;
      EXPECT_EQ(counter("stats.used_bytes"), used) << site_name(site) << nth;
      EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u) << site_name(site) << nth;
    }
  EXPECT_EQ(make(RDMALLOC_PAGE_2M, 10 * kMiB), nullptr) << "the pool has four";
  EXPECT_EQ(last_error, -ENOMEM);
  EXPECT_TRUE(says("5 huge pages of 2097152 bytes are needed and 4 are free")) << said;
  EXPECT_EQ(pool.free(), 4u);
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_2M, 8 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Addresses that had huge pages get them again when the heap there ends: by one call for all chunks
// that lie side by side. Seen to fail: with a call for each chunk, and with none.
TEST_F(HeapPageSizes, a_heap_that_ends_asks_once_for_huge_pages_that_were_there) {
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  auto had_huge_pages = [](const void* block, size_t at) {
    return rdmalloc::huge_is_chunk(
        rdmalloc::arena.slice_of(reinterpret_cast<uintptr_t>(block) + at));
  };
  // Earlier heaps leave clean addresses of small pages. Blocks take those, until one lies on huge
  // pages only; the heap goes where that one was.
  ASSERT_GE(rdmalloc_purge(0), 0);
  std::vector<void*> held;
  void* place = nullptr;
  for (int tries = 0; tries < 512 && place == nullptr; tries++) {
    void* block = rdmalloc_aligned_alloc(k2M, 8 * kMiB);
    ASSERT_NE(block, nullptr);
    bool is_huge = true;
    for (size_t at = 0; at < 8 * kMiB; at += k2M) is_huge &= had_huge_pages(block, at);
    if (is_huge)
      place = block;
    else
      held.push_back(block);
  }
  if (place == nullptr) {
    const bool there_are = rdmalloc_test::gives_huge_pages();
    for (void* block : held) rdmalloc_free(block);
    ASSERT_FALSE(there_are) << "blocks have none";
    GTEST_SKIP() << "SKIP: this kernel gives no transparent huge pages";
  }
  rdmalloc_free(place);
  ASSERT_GE(rdmalloc_purge(0), 0);
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_2M, 8 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 7 * kMiB));
  ASSERT_EQ(block, place);
  uint64_t fired = rdmalloc::os::faults_fired();
  arm_fault(Site::kAdviseHuge, 2);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  arm_fault(Site::kAdviseHuge, 0);
  EXPECT_EQ(rdmalloc::os::faults_fired(), fired);
  for (size_t at = 0; at < 8 * kMiB; at += k2M)
    EXPECT_NE(smaps_field(block + at, "VmFlags").find(" hg"), std::string::npos) << at;
  for (void* each : held) rdmalloc_free(each);
}

// Of what these tests change of the machine. Fails without HugePool's process.
TEST_F(HeapPageSizes, the_pool_is_as_before_when_a_test_was_killed) {
  uint64_t before = 0;
  {
    HugePool pool(k2M);
    before = pool.pages();
    if (!pool.make_free(1)) GTEST_SKIP() << pool.why_not;
  }
  EXPECT_EXIT(
      {
        HugePool pool(k2M);
        if (!pool.make_free(3)) _exit(1);
        raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  HugePool pool(k2M);  // waits for the lock
  EXPECT_EQ(pool.pages(), before);
}

// A region that can't get its plain pages back keeps its addresses until it can. Seen to fail:
// without the call of region_pages_restore_in_turn() in rdmalloc_purge().
TEST_F(HeapPageSizes, I7_plain_pages_refused_at_first_come_with_a_later_purge) {
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  for (Site site : {Site::kReserveOver, Site::kCommit}) {
    rdmalloc_heap* heap = make(RDMALLOC_PAGE_2M, 8 * kMiB);
    ASSERT_EQ(last_error, 0) << said;
    uint64_t used = counter("stats.used_bytes");
    arm_fault(site, 1);
    ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
    EXPECT_EQ(counter("stats.heap_retired_bytes"), 8 * kMiB);
    EXPECT_EQ(counter("stats.used_bytes"), used) << "no other heap gets them";
    ASSERT_GE(rdmalloc_purge(0), 0);
    EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u);
    EXPECT_EQ(counter("stats.used_bytes"), used - 8 * kMiB);
    EXPECT_EQ(pool.free(), 4u);
  }
}

TEST_F(HeapPageSizes, while_purging_is_paused_no_pages_are_exchanged) {
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_THP, 4 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  ASSERT_EQ(rdmalloc_purge_pause(), 0);
  EXPECT_EQ(make(RDMALLOC_PAGE_THP, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -EBUSY);
  EXPECT_TRUE(says("paused")) << said;
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 4 * kMiB);
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  ASSERT_GE(rdmalloc_purge(0), 0);
}

// Fails when pages that a heap exchanged are no news.
TEST_F(HeapPageSizes, observers_are_told_of_the_pages_that_came) {
  uint64_t told = 0;
  rdmalloc_test::Observer observer;
  observer.use = observer.reuse = [&](char*, size_t length) { told += length; };
  ASSERT_EQ(observer.add(), 0);
  ASSERT_GE(rdmalloc_purge(0), 0);
  told = 0;
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_THP, 4 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  told = 0;  // of the address range as it was taken, before the exchange
  ASSERT_GE(rdmalloc_purge(0), 0);
  EXPECT_GE(told, 4 * kMiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when an exchange that an observer refuses is taken for done: a heap had ordinary pages for
// those it asked for, and others got what lies on a destroyed heap's.
TEST_F(HeapPageSizes, pages_that_an_observer_keeps_are_not_exchanged) {
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_THP, 4 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  rdmalloc_test::Observer observer([](char*, size_t) { return -EBUSY; });
  ASSERT_EQ(observer.added(), 0);
  EXPECT_EQ(make(RDMALLOC_PAGE_THP, 4 * kMiB), nullptr);
  EXPECT_EQ(last_error, -EBUSY);
  EXPECT_TRUE(says("an observer of page events keeps what lies there")) << said;
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(rdmalloc_purge(0), 0);
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 4 * kMiB);
  ASSERT_EQ(observer.remove(), 0);
  ASSERT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(counter("stats.heap_retired_bytes"), 0u);
}

// A purge that waits for the turn while a pause begins. Seen to fail without the second look in
// rdmalloc_purge(): the retired region is offered to the observer once more.
TEST_F(HeapPageSizes, no_pages_are_exchanged_by_a_purge_that_a_pause_overtakes) {
  rdmalloc_heap* heap = make(RDMALLOC_PAGE_THP, 4 * kMiB);
  ASSERT_EQ(last_error, 0) << said;
  ASSERT_EQ(rdmalloc_purge_pause(), 0);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  struct {
    std::atomic<int> asked{0};
    std::atomic<bool> goes_on{false};
  } s;
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purge = [](void* arg, void*, size_t, rdmalloc_purge_reason) {
    auto* shared = static_cast<decltype(s)*>(arg);
    ++shared->asked;
    while (!shared->goes_on) usleep(100);
    return -EBUSY;
  };
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &s, &observer), 0);
  std::thread first([] { rdmalloc_purge(0); });
  while (s.asked == 0) usleep(100);
  std::atomic<int64_t> result{0};
  std::atomic<pid_t> second_id{0};
  std::thread second([&] {
    second_id = gettid();
    result = rdmalloc_purge(0);
  });
  while (second_id == 0 || !rdmalloc_test::is_asleep(second_id)) usleep(100);
  std::thread pauser([] { EXPECT_EQ(rdmalloc_purge_pause(), 0); });
  while (!rdmalloc::purge_is_paused()) usleep(100);
  s.goes_on = true;
  for (std::thread* thread : {&first, &second, &pauser}) thread->join();
  EXPECT_EQ(result, -EBUSY);
  EXPECT_EQ(s.asked, 1);
  ASSERT_EQ(rdmalloc_observer_remove(observer), 0);
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  ASSERT_GE(rdmalloc_purge(0), 0);
}

// ---- kernels that can't, played by a filter of system calls in a child ----

void refuse_calls(long number, int argument, uint32_t bit) {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
               static_cast<uint32_t>(offsetof(seccomp_data, args) + 8u * argument)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof filter / sizeof filter[0], const_cast<sock_filter*>(filter)};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0)
    _exit(4);
}

int error_of_making(uint32_t page_size) {
  rdmalloc_heap_attr attr = rdmalloc_test::heap_attr(4 * kMiB, page_size);
  rdmalloc_heap* heap = nullptr;
  int error = rdmalloc_heap_create(&attr, &heap);
  if (!rdmalloc::page_heap_is_valid() || counter("stats.heap_retired_bytes") != 0) _exit(5);
  return -error;
}

TEST_F(HeapPageSizes, a_kernel_without_such_pages_differs_from_one_without_means) {
  HugePool pool(k2M);
  if (!pool.make_free(4)) GTEST_SKIP() << pool.why_not;
  // Output goes where gtest turned the errors to: what descriptor 2 alone is turned to gets no
  // message.
  EXPECT_EXIT(
      {
        dup2(2, 1);
        refuse_calls(SYS_mmap, 3, MAP_HUGETLB);
        _exit(error_of_making(RDMALLOC_PAGE_2M));
      },
      testing::ExitedWithCode(ENOTSUP), "could not be made");
  EXPECT_EXIT(
      {
        dup2(2, 1);
        refuse_calls(SYS_mremap, 3, MREMAP_FIXED);
        _exit(error_of_making(RDMALLOC_PAGE_2M));
      },
      testing::ExitedWithCode(ENOTSUP), "Linux 5.16");
  EXPECT_EXIT(
      {
        PiecesOf2MiB pieces;  // seen to fail: with one move for all of them
        refuse_calls(SYS_mremap, 1, ~uint32_t{k2M * 2 - 1});  // lengths from 4 MiB on
        _exit(error_of_making(RDMALLOC_PAGE_2M));
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(pool.free(), 4u);
}

// Seen to fail, by NULL, when the search was for all that a block may have to pass over.
TEST_F(HeapPageSizes, a_region_at_a_far_multiple_serves_a_block_aligned_so) {
  std::vector<rdmalloc_heap*> heaps;
  void* all = nullptr;
  do {
    // One of 2 MiB between two of 8 moves the second to the next multiple of 4, or from it.
    if (!heaps.empty()) heaps.push_back(make(RDMALLOC_PAGE_THP, k2M));
    heaps.push_back(make(RDMALLOC_PAGE_THP, 8 * kMiB));
    all = rdmalloc_heap_malloc(heaps.back(), 8 * kMiB);
    rdmalloc_heap_free(heaps.back(), all);
  } while (reinterpret_cast<uintptr_t>(all) % (4 * kMiB) != 0 && heaps.size() < 16);
  void* block = rdmalloc_heap_aligned(heaps.back(), 4 * kMiB, 8 * kMiB);
  EXPECT_EQ(block, all);
  rdmalloc_heap_free(heaps.back(), block);
  for (rdmalloc_heap* heap : heaps) EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  ASSERT_GE(rdmalloc_purge(0), 0);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
