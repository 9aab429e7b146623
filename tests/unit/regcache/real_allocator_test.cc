// The cache over the real allocator, in whose purges the tests take part.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "alloc/os/fault.h"
#include "tests/support/counters.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

// What libraries that have patched libc's madvise do in it: the purge thread decommits by that.
std::function<void(void* base)> in_madvise;

}  // namespace

extern "C" int madvise(void* base, std::size_t length, int advice) noexcept {
  if (in_madvise) in_madvise(base);
  return static_cast<int>(syscall(SYS_madvise, base, length, advice));
}

namespace {

// Page events, of which the tests want one.
class Purges {
 public:
  using Fn = std::function<void(char* base, std::size_t length)>;
  explicit Purges(Fn fn) : fn_(std::move(fn)) {
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    ops.purge = [](void* arg, void* base, std::size_t length, rdmalloc_purge_reason) {
      static_cast<Purges*>(arg)->fn_(static_cast<char*>(base), length);
      return 0;
    };
    EXPECT_EQ(rdmalloc_observer_add(&ops, this, &observer_), 0);
  }
  ~Purges() { EXPECT_EQ(rdmalloc_observer_remove(observer_), 0); }
  Purges(const Purges&) = delete;
  Purges& operator=(const Purges&) = delete;

 private:
  Fn fn_;
  rdmalloc_observer* observer_ = nullptr;
};

// A registrar like SPDK's, whose registrations take in what lies beside a block.
class CoarseRegistrar : public RegisteredHeaps {
 protected:
  static constexpr std::size_t kUnit = 2 * kMiB;

  void SetUp() override {
    fabric.ops.granularity = kUnit;
    for (int i = 0; i < 160; ++i) {
      blocks.push_back(static_cast<char*>(rdmalloc_malloc(kBlock)));
      std::memset(blocks.back(), 1, kBlock);
    }
  }
  void TearDown() override {
    for (char* block : blocks) rdmalloc_free(block);
    RegisteredHeaps::TearDown();
  }
  static std::uintptr_t unit_of(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) / kUnit;
  }
  // Frees every other block of the first half, and all of the second.
  void free_some() {
    std::vector<char*> kept;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % 2 == 0 && i < blocks.size() / 2)
        kept.push_back(blocks[i]);
      else
        rdmalloc_free(blocks[i]);
    }
    blocks = kept;
  }

  static constexpr std::size_t kBlock = 128 * kKiB;
  std::vector<char*> blocks;  // live
};

// Fails when rdmalloc_domain_open() leaves the place taken, or purges paused, where it is refused.
TEST_F(CoarseRegistrar, I10_an_open_that_fails_takes_no_place_and_lets_purges_go_on) {
  StubDomain first(fabric);                         // what all domains need is there from now on
  std::vector<std::unique_ptr<StubDomain>> others;  // until a place without tables is next
  int refused = 0;
  for (int i = 0; i < 2 * 64 && refused < 64; ++i) {
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kMapMetadata, 1);
    auto one = std::make_unique<StubDomain>(fabric);
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kMapMetadata, 0);
    if (one->open_error == 0) {
      others.push_back(std::move(one));
    } else {
      ASSERT_EQ(one->open_error, -ENOMEM);
      ++refused;
    }
  }
  ASSERT_EQ(refused, 64);
  others.clear();
  EXPECT_EQ(StubDomain(fabric).open_error, 0);
  free_some();
  EXPECT_GT(rdmalloc_purge(0), 0);
}

// Seen to fail, by -EFAULT from each get, when a part of a unit could be purged.
TEST_F(CoarseRegistrar, a_get_of_a_live_block_never_fails_for_a_purge_beside_it) {
  StubDomain domain(fabric);
  ASSERT_EQ(domain.open_error, 0);
  std::set<std::uintptr_t> purged;
  {
    Purges purges([&](char* base, std::size_t length) {
      std::uintptr_t first = unit_of(base), last = unit_of(base + length - 1);
      for (std::uintptr_t unit = first; unit <= last; ++unit) purged.insert(unit);
      for (char* block : blocks) {
        if (unit_of(block) < first || unit_of(block + kBlock - 1) > last) continue;
        EXPECT_NE(domain.get(block, kBlock), nullptr) << domain.last_error;
      }
    });
    free_some();
    rdmalloc_purge(0);
  }
  for (char* block : blocks) EXPECT_NE(domain.touch(block, kBlock), 0u) << domain.last_error;
  // Where no block is left, units go, although what was freed there begins and ends beside them.
  EXPECT_GE(purged.size(), 3u);
}

// Seen to fail in the same way when open did not wait: that purge has not heard of the domain.
TEST_F(CoarseRegistrar, a_domain_that_opens_waits_for_a_purge_under_way) {
  std::thread opener;
  std::atomic<bool> is_ready{false};
  {
    Purges purges([&](char*, std::size_t) {
      if (opener.joinable()) return;
      opener = std::thread([&] {
        StubDomain domain(fabric);
        for (char* block : blocks) EXPECT_NE(domain.touch(block, kBlock), 0u) << domain.last_error;
        is_ready = true;
      });
      // Time for one that does not wait.
      for (int i = 0; i < 200 && !is_ready; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    free_some();
    rdmalloc_purge(0);
  }
  ASSERT_TRUE(opener.joinable());
  opener.join();
}

// Seen to fail: each such purge was refused, until the domain was closed.
TEST_F(CoarseRegistrar, a_domain_refused_at_a_resume_keeps_no_part_of_a_unit) {
  fabric.ops.resume = [](void*) { return -EIO; };
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_quiesce(1000), 0);
  ASSERT_EQ(rdmalloc_resume(), -EIO);
  free_some();
  rdmalloc_purge(0);
  EXPECT_EQ(rdmalloc_test::counter("stats.dirty_bytes"), 0u);
  EXPECT_EQ(domain.counters().purge_refusals, 0u);
}

// Blocks of one slab, all free but the first and the last.
class BlocksOfASlab : public RegisteredHeaps {
 protected:
  static constexpr std::size_t kBlock = 16 * kKiB;

  void SetUp() override {
    std::map<void*, std::set<char*>> slabs;
    for (int i = 0; i < 60; ++i) {
      auto* block = static_cast<char*>(rdmalloc_malloc(kBlock));
      std::memset(block, 1, kBlock);
      rdmalloc_range range = {};
      range.size = sizeof range;
      ASSERT_EQ(rdmalloc_range_of(block, &range), 0);
      slabs[range.base].insert(block);
    }
    for (auto& [base, of_slab] : slabs)
      if (of_slab.size() > blocks.size()) blocks = of_slab;
    for (auto& [base, of_slab] : slabs)
      for (char* block : of_slab)
        if (block != *blocks.begin() && block != *blocks.rbegin()) rdmalloc_free(block);
    ASSERT_GT(blocks.size(), 2u);
    first = *blocks.begin();
    last = *blocks.rbegin();
  }
  void TearDown() override {
    rdmalloc_free(first);
    rdmalloc_free(last);
    RegisteredHeaps::TearDown();
  }
  int prefault_both(StubDomain& domain) {
    iovec ranges[] = {{first, kBlock}, {last, kBlock}};
    return rdmalloc_reg_prefault(&domain.handle, 1, ranges, 2, 1, nullptr, nullptr);
  }

  std::set<char*> blocks;
  char *first = nullptr, *last = nullptr;
};

// Seen to fail, by -EAGAIN, when register_next() took the first answer.
TEST_F(BlocksOfASlab, a_prefault_waits_for_a_purge_between_them) {
  StubDomain domain(fabric);
  std::thread prefault;
  std::atomic<pid_t> thread{0};
  std::atomic<bool> is_over{false};
  int error = 1;
  {
    Purges purges([&](char* base, std::size_t) {
      if (base < first || base > last || prefault.joinable()) return;
      prefault = std::thread([&] {
        thread = gettid();
        error = prefault_both(domain);
        is_over = true;
      });
      while (!is_over && !(domain.counters().misses != 0 && rdmalloc_test::is_asleep(thread)))
        std::this_thread::yield();
    });
    EXPECT_GT(rdmalloc_purge(0), 0);
  }
  ASSERT_TRUE(prefault.joinable()) << "nothing was purged between them";
  prefault.join();
  EXPECT_EQ(error, 0);
  EXPECT_TRUE(fabric.touches(first, kBlock) && fabric.touches(last, kBlock));
}

// Seen to fail, by waiting for ever, when only page events were looked for: that is none.
TEST_F(BlocksOfASlab, a_prefault_in_a_decommit_does_not_wait_for_it) {
  StubDomain domain(fabric);
  int error = 1;
  in_madvise = [&](void* base) {
    if (base < first || base > last) return;
    error = prefault_both(domain);
  };
  EXPECT_GT(rdmalloc_purge(0), 0);
  in_madvise = nullptr;
  EXPECT_EQ(error, -EDEADLK);
  EXPECT_EQ(prefault_both(domain), 0);
}

// A limit below what a slab takes, so that keys are of the pages of their blocks; and one block
// without a key, so that the slab stays in use.
class KeysOfParts : public RegisteredHeaps {
 protected:
  static constexpr std::size_t kBlock = 16 * kKiB, kBlocks = 30;
  static constexpr std::uint64_t kFit = 12;

  void SetUp() override {
    for (std::size_t i = 0; i < kBlocks; ++i)
      blocks.push_back(static_cast<char*>(rdmalloc_malloc(kBlock)));
    attr.max_bytes = kFit * kBlock / 3 * 4;  // uncounted keys may take three quarters
  }
  void TearDown() override {
    for (char* block : blocks) rdmalloc_free(block);
    RegisteredHeaps::TearDown();
  }
  // The key of the last block; the error, or 0, and then the block is free.
  int key_and_free(StubDomain& domain) {
    rdmalloc_key key;
    int error = rdmalloc_reg_key(domain.handle, blocks.back(), kBlock, RDMALLOC_ACCESS_LOCAL, &key);
    if (error != 0) return error;
    rdmalloc_free(blocks.back());
    blocks.pop_back();
    return 0;
  }

  rdmalloc_domain_attr attr = {};
  std::vector<char*> blocks;
};

// Seen to fail, by -ENOMEM for the 13th, when only a span that is idle ended stickiness.
TEST_F(KeysOfParts, blocks_that_were_freed_make_room_for_others_keys) {
  StubDomain domain(fabric, attr);
  while (blocks.size() > 1) ASSERT_EQ(key_and_free(domain), 0) << blocks.size();
  EXPECT_GT(domain.counters().evictions, 0u);
  // Those of live blocks stay: the limit holds.
  for (std::size_t i = 0; i < kBlocks; ++i)
    blocks.push_back(static_cast<char*>(rdmalloc_malloc(kBlock)));
  std::uint64_t keys = 0;
  rdmalloc_key key;
  for (char* block : blocks)
    keys += rdmalloc_reg_key(domain.handle, block, kBlock, RDMALLOC_ACCESS_LOCAL, &key) == 0;
  EXPECT_EQ(keys, kFit);
  EXPECT_EQ(domain.counters().sticky_count, kFit);
}

// Seen to fail likewise.
TEST_F(KeysOfParts, a_flush_ends_those_of_freed_blocks) {
  StubDomain domain(fabric, attr);
  for (std::uint64_t i = 0; i < kFit; ++i) ASSERT_EQ(key_and_free(domain), 0);
  EXPECT_EQ(domain.counters().sticky_count, kFit);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), static_cast<std::int64_t>(kFit));
  EXPECT_EQ(fabric.live(), 0u);
}

// Seen to fail likewise: the pages of the blocks stayed, too.
TEST_F(KeysOfParts, a_purge_ends_those_of_freed_blocks) {
  StubDomain domain(fabric, attr);
  for (std::uint64_t i = 0; i < kFit; ++i) {
    std::memset(blocks.back(), 1, kBlock);
    ASSERT_EQ(key_and_free(domain), 0);
  }
  EXPECT_GE(rdmalloc_purge(0), static_cast<std::int64_t>(kFit * kBlock));
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(domain.counters().purge_drops, kFit);
}

// Keys of blocks that are spans, in a domain where four may have one, of six registrations. What
// the thread frees it keeps for its next block of that length: of these lengths one block, or some
// in a magazine. Each was seen to fail when a flush of the thread's cache was for parts of slabs
// only: what is kept is in use, as far as its page heap is concerned.
class KeysOfSpans : public RegisteredHeaps {
 protected:
  static constexpr std::uint64_t kFit = 4;

  void SetUp() override { attr.max_count = 6; }
  static char* allocate(std::size_t bytes) { return static_cast<char*>(rdmalloc_malloc(bytes)); }
  static int key_of(StubDomain& domain, char* block) {
    rdmalloc_key key;
    return rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key);
  }
  void keys_of_freed(StubDomain& domain, std::size_t bytes, std::uint64_t count) {
    std::vector<char*> blocks;
    for (std::uint64_t i = 0; i < count; ++i) blocks.push_back(allocate(bytes));
    for (char* block : blocks) ASSERT_EQ(key_of(domain, block), 0);
    for (char* block : blocks) rdmalloc_free(block);
    ASSERT_EQ(domain.counters().sticky_count, count);
  }

  rdmalloc_domain_attr attr = {};
};

TEST_F(KeysOfSpans, a_flush_ends_that_of_the_kept_block) {
  StubDomain domain(fabric, attr);
  for (int i = 0; i < 50; ++i) rdmalloc_free(allocate(kMiB));
  keys_of_freed(domain, kMiB, 1);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), 1);
  EXPECT_EQ(fabric.live(), 0u);
}

TEST_F(KeysOfSpans, a_flush_ends_those_in_a_magazine) {
  StubDomain domain(fabric, attr);
  keys_of_freed(domain, 128 * kKiB, kFit);
  EXPECT_EQ(rdmalloc_domain_flush(domain.handle), static_cast<std::int64_t>(kFit));
  EXPECT_EQ(fabric.live(), 0u);
}

TEST_F(KeysOfSpans, freed_ones_make_room_for_others_keys) {
  StubDomain domain(fabric, attr);
  keys_of_freed(domain, 128 * kKiB, kFit);
  char* longer = allocate(kMiB);
  EXPECT_EQ(key_of(domain, longer), 0);
  rdmalloc_free(longer);
}

TEST_F(KeysOfSpans, freed_ones_make_room_for_a_heap) {
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric, attr);
  keys_of_freed(domain, 128 * kKiB, kFit);
  rdmalloc_heap* heap = make({domain.handle}, 12 * kMiB);
  EXPECT_EQ(last_error, 0);
  EXPECT_EQ(domain.counters().live_count, attr.max_count);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when make_heaps() drops nothing of what a purge has left to the program's threads.
TEST_F(KeysOfSpans, what_a_purge_left_to_a_thread_makes_room_for_a_heap) {
  fabric.ops.flags &= ~RDMALLOC_REGISTRAR_ANY_THREAD;
  attr.max_count = 1;
  StubDomain domain(fabric, attr);
  char* block = allocate(kMiB);
  ASSERT_NE(domain.touch(block, kMiB), 0u);
  rdmalloc_free(std::memset(block, 1, kMiB));
  rdmalloc_purge(0);
  ASSERT_EQ(fabric.live(), 1u);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  EXPECT_EQ(last_error, 0);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

TEST_F(KeysOfSpans, freed_ones_make_room_for_a_prefault) {
  StubDomain domain(fabric, attr);
  keys_of_freed(domain, 128 * kKiB, kFit);
  std::vector<iovec> ranges;
  for (std::uint64_t i = 0; i < attr.max_count; ++i) ranges.push_back({allocate(kMiB), kMiB});
  EXPECT_EQ(
      rdmalloc_reg_prefault(&domain.handle, 1, ranges.data(), ranges.size(), 1, nullptr, nullptr),
      0);
  for (const iovec& range : ranges) rdmalloc_free(range.iov_base);
}

TEST_F(KeysOfSpans, freed_ones_make_room_for_a_pool) {
  StubDomain domain(fabric, attr);
  keys_of_freed(domain, 128 * kKiB, kFit);
  rdmalloc_pool_attr of_pool = {};
  of_pool.size = sizeof of_pool;
  of_pool.small_count = of_pool.large_count = 3;
  of_pool.access = kRemote;  // a registration for each buffer
  rdmalloc_pool* pool = nullptr;
  EXPECT_EQ(rdmalloc_pool_create(&domain.handle, 1, &of_pool, &pool), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

// Seen to fail, by 0 from each, when the event of the program's observer did not count as one.
TEST_F(RegisteredHeaps, calls_that_wait_are_refused_in_an_observers_event) {
  StubDomain domain(fabric);
  std::vector<int> results;
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  {
    Purges purges([&](char*, std::size_t) {
      rdmalloc_domain* handle = nullptr;
      iovec range = {block, kMiB};
      results = {rdmalloc_domain_open(&fabric.ops, &fabric, nullptr, &handle),
                 rdmalloc_domain_close(domain.handle),
                 static_cast<int>(rdmalloc_domain_flush(domain.handle)),
                 static_cast<int>(rdmalloc_invalidate(nullptr, block, 8, nullptr, nullptr)),
                 rdmalloc_reg_prefault(&domain.handle, 1, &range, 1, 1, nullptr, nullptr)};
    });
    rdmalloc_free(std::memset(rdmalloc_malloc(kMiB), 1, kMiB));
    EXPECT_GT(rdmalloc_purge(0), 0);
  }
  EXPECT_EQ(results, std::vector<int>(5, -EDEADLK));
  rdmalloc_free(block);
}

// As a handler of UCX's events may, which the purge thread calls before each decommit. Seen to
// fail, by -EDEADLK, when it was refused all: a program then can't tell that nothing is left there.
TEST_F(RegisteredHeaps, what_is_being_purged_counts_as_invalidated_in_its_event) {
  StubDomain domain(fabric);
  char* block = static_cast<char*>(rdmalloc_malloc(4 * kMiB));
  std::memset(block, 1, 4 * kMiB);
  ASSERT_NE(domain.touch(block, kMiB), 0u);
  int dones = 0, purges_seen = 0;
  auto invalidate = [&](rdmalloc_domain* of, char* base, std::size_t length) {
    return rdmalloc_invalidate(
        of, base, length, [](void* arg) { ++*static_cast<int*>(arg); }, &dones);
  };
  {
    Purges purges([&](char* base, std::size_t length) {
      ++purges_seen;
      dones = 0;
      EXPECT_FALSE(fabric.touches(base, length));
      EXPECT_EQ(invalidate(nullptr, base, length), 0);
      EXPECT_EQ(invalidate(domain.handle, base + 8, length - 8), 0);
      EXPECT_EQ(dones, 2);
      EXPECT_EQ(invalidate(nullptr, base, length + 1), -EDEADLK);
      EXPECT_EQ(invalidate(nullptr, base - 1, 8), -EDEADLK);
      EXPECT_EQ(dones, 2) << "refused, and done";
    });
    rdmalloc_free(block);
    EXPECT_GT(rdmalloc_purge(0), 0);
  }
  EXPECT_GT(purges_seen, 0);
  EXPECT_EQ(fabric.live(), 0u);
}

// Seen to fail, by waiting for ever, when only the first domain of a process started it.
TEST_F(RegisteredHeaps, a_domain_brings_the_purge_thread_back_after_fini) {
  { StubDomain first(fabric); }
  ASSERT_EQ(rdmalloc_init(), 0);
  ASSERT_EQ(rdmalloc_fini(), 0);
  ASSERT_EQ(rdmalloc_test::threads_named("rdmalloc-purge"), 0);
  StubDomain domain(fabric);
  while (rdmalloc_test::threads_named("rdmalloc-purge") != 1) std::this_thread::yield();
}

}  // namespace
