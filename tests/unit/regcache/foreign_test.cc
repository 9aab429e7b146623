// Foreign memory: I6, adopting and disowning, RDMALLOC_FOREIGN. Each test was seen to fail; the
// comment at each says how.
#include <sys/mman.h>
#include <sys/wait.h>

#include <future>
#include <optional>
#include <random>
#include <thread>

#include "alloc/core/options.h"
#include "regcache/core/byte_ranges.h"
#include "regcache/core/stripes.h"
#include "tests/support/capture.h"
#include "tests/unit/regcache/fixture.h"

namespace {

class Foreign : public Regcache {
 protected:
  static constexpr std::size_t kPages = 4096;

  void SetUp() override {
    Regcache::SetUp();
    map = static_cast<char*>(mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    ASSERT_NE(map, MAP_FAILED);
  }
  void TearDown() override {
    set_mode("per-use");
    unsetenv("RDMALLOC_FOREIGN");
    rdmalloc_disown(map, kPages * kPage);
    munmap(map, kPages * kPage);
    Regcache::TearDown();
  }
  static void set_mode(const char* mode) {
    setenv("RDMALLOC_FOREIGN", mode, 1);
    rdmalloc::options_read();
  }
  char* page(std::size_t index) { return map + index * kPage; }

  char* map = nullptr;
};

// Fails when keeps_to_pages() is not asked: the page beside, which may not be mapped, is
// registered.
TEST_F(Foreign, a_registrar_coarser_than_a_page_takes_whole_units_only) {
  fabric.ops.granularity = 4 * kPage;
  StubDomain domain(fabric);
  std::size_t first = (4 - reinterpret_cast<std::uintptr_t>(map) / kPage % 4) % 4;
  for (bool is_adopted : {false, true}) {
    SCOPED_TRACE(is_adopted);
    EXPECT_EQ(domain.get(page(first), 3 * kPage), nullptr);
    EXPECT_EQ(domain.last_error, -EINVAL);
    EXPECT_EQ(domain.get(page(first + 1), 3 * kPage), nullptr);
    EXPECT_NE(domain.touch(page(first), 3 * kPage + 1), 0u) << "all of its pages";
    ASSERT_EQ(rdmalloc_adopt(map, kPages * kPage), 0);
  }
}

// Seen to fail when keeps_to_pages() did not look at the plan's length: an end rounded up to 0 made
// it empty, and the get succeeded with nothing registered.
TEST_F(Foreign, a_range_up_to_the_last_address_is_refused) {
  StubDomain domain(fabric);
  for (std::uintptr_t low : {std::uintptr_t{0}, std::uintptr_t{1}, UINTPTR_MAX - kPage}) {
    rdmalloc_reg* reg = domain.get(reinterpret_cast<void*>(low), UINTPTR_MAX - low);
    EXPECT_EQ(reg, nullptr) << low;
    EXPECT_EQ(domain.last_error, -EINVAL) << low;
    rdmalloc_reg_put(reg);
  }
  EXPECT_EQ(fabric.calls, 0u);
}

// Neither owned nor foreign. Seen to be registered with both its ends beyond the arena, and purged
// while it was.
TEST_F(Foreign, I3_a_range_with_the_arena_in_it_is_refused) {
  StubDomain domain(fabric);
  char* block = span(10, 2);
  char* arena = block - 10 * kSlice;
  free_span(block);
  fabric.before_enter = [&](void*, std::size_t) { return fake::purge(10, 2) == 0 ? -EIO : 0; };
  using Range = std::pair<char*, std::size_t>;
  for (auto [low, length] :
       {Range{arena - kPage, fake::kArenaBytes + 2 * kPage}, Range{arena - 1, kPage},
        Range{arena - kPage, fake::kArenaBytes + kPage}, Range{arena + fake::kArenaBytes - 1, 2}}) {
    EXPECT_EQ(domain.touch(low, length), 0u);
    EXPECT_EQ(domain.last_error, -EFAULT);
  }
  EXPECT_EQ(fabric.calls, 0u);
  fabric.before_enter = {};
  EXPECT_NE(domain.touch(arena - kPage, kPage), 0u);
  EXPECT_NE(domain.touch(arena + fake::kArenaBytes, kPage), 0u);
}

// Fails when find_or_make() plans adopted memory as per-use.
TEST_F(Foreign, what_is_adopted_is_cached_until_it_is_disowned) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(10), 10 * kPage), 0);
  std::uint64_t generation = domain.touch(page(11) + 100, 2 * kPage);
  ASSERT_NE(generation, 0u);
  EXPECT_EQ(fabric.live(), 1u) << "kept after its put";
  EXPECT_EQ(domain.touch(page(11), 3 * kPage), generation) << "the pages asked, and all of them";
  EXPECT_NE(domain.touch(page(11), 4 * kPage), generation);
  EXPECT_EQ(fabric.live(), 1u) << "the narrower one was superseded";
  auto counters = domain.counters();
  EXPECT_EQ(counters.hits, 1u);
  EXPECT_EQ(counters.misses, 2u);
  EXPECT_EQ(counters.foreign, 2u);
  EXPECT_EQ(rdmalloc_disown(page(10), 10 * kPage), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_NE(domain.touch(page(11), kPage), 0u);
  EXPECT_EQ(fabric.live(), 0u) << "for one use, as before";
  EXPECT_EQ(rdmalloc_disown(page(10), 10 * kPage), -ENOENT);
}

// Fails when hold() is true for what is adopted in part only.
TEST_F(Foreign, I6_memory_that_is_not_adopted_is_never_cached) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(10), 10 * kPage), 0);
  for (auto [first, length] :
       {std::pair<std::size_t, std::size_t>{9, 1}, {9, 2}, {19, 2}, {20, 1}}) {
    EXPECT_NE(domain.touch(page(first), length * kPage), 0u);
    EXPECT_EQ(fabric.live(), 0u) << "pages " << first << " + " << length;
  }
  EXPECT_NE(domain.touch(page(10), kPage, RDMALLOC_ACCESS_REMOTE_READ), 0u);
  EXPECT_EQ(fabric.live(), 0u) << "remote access ends at its put (I13)";
}

// Fails when add() does not join, or remove() does not keep what is left on both sides.
TEST_F(Foreign, adopted_ranges_are_a_set_of_bytes_as_in_a_model) {
  StubDomain domain(fabric);
  std::vector<bool> model(64);
  std::mt19937 random(7);
  for (int step = 0; step < 3000; ++step) {
    std::size_t first = random() % 64, length = 1 + random() % (64 - first);
    if (length > 9 && random() % 8 != 0) length = 1 + length % 9;
    auto begin = model.begin() + static_cast<std::ptrdiff_t>(first);
    auto end = begin + static_cast<std::ptrdiff_t>(length);
    bool has_any = std::find(begin, end, true) != end;
    if (random() % 2 == 0) {
      ASSERT_EQ(rdmalloc_adopt(page(first), length * kPage), 0);
      std::fill(begin, end, true);
    } else {
      ASSERT_EQ(rdmalloc_disown(page(first), length * kPage), has_any ? 0 : -ENOENT);
      std::fill(begin, end, false);
    }
    first = random() % 60, length = 1 + random() % 4;
    begin = model.begin() + static_cast<std::ptrdiff_t>(first);
    bool has_all = std::find(begin, begin + static_cast<std::ptrdiff_t>(length), false) ==
                   begin + static_cast<std::ptrdiff_t>(length);
    domain.touch(page(first), length * kPage);
    ASSERT_EQ(fabric.touches(page(first), length * kPage), has_all) << "step " << step;
    rdmalloc_domain_flush(domain.handle);
  }
}

// Fails when disown does not look for what is still held, or the last put does not drop it.
TEST_F(Foreign, what_is_held_while_it_is_disowned_goes_with_its_last_put) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(0), 4 * kPage), 0);
  rdmalloc_reg* held = domain.get(page(1), kPage);
  EXPECT_EQ(rdmalloc_disown(page(0), 4 * kPage), -EBUSY);
  EXPECT_TRUE(fabric.touches(page(1), kPage));
  rdmalloc_reg_put(held);
  EXPECT_EQ(fabric.live(), 0u);
}

// With the domain's lock held by another thread, a hit goes on. Fails when reg_get() does not look
// without it.
TEST_F(Foreign, a_hit_takes_no_lock) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(0), kPages * kPage), 0);
  for (std::size_t i = 0; i < 1000; ++i) domain.touch(page(4 * i), 2 * kPage);
  auto* inside = rdmalloc::regcache::domain_of(domain.handle);
  std::optional<rdmalloc::regcache::WholeGuard> guard(*inside);
  auto hits = std::async(std::launch::async, [&] {
    for (std::size_t i = 0; i < 1000; ++i) domain.touch(page(4 * i + 1), kPage);
  });
  // A hit that waits for us waits for ever: the test's own limit ends that.
  hits.wait();
  guard.reset();
  EXPECT_EQ(domain.counters().hits, 1000u);
}

// The record that a hint names is used again for other pages, and then for the same pages in
// another domain. Fails when get_foreign() takes what a hint names without a look at it: at its
// range, or at its domain.
TEST_F(Foreign, a_hint_that_outlived_its_registration_finds_no_other) {
  RecordsAtOnce at_once;
  StubDomain domain(fabric), other(another_fabric(fabric.ops.flags));
  ASSERT_EQ(rdmalloc_adopt(page(0), kPages * kPage), 0);
  rdmalloc_reg* first = domain.get(page(0), kPage);
  rdmalloc_reg_put(first);
  domain.touch(page(0), kPage);  // a hit, which leaves the hint
  EXPECT_EQ(domain.counters().hits, 1u);
  for (StubDomain* next : {&domain, &other}) {
    ASSERT_EQ(rdmalloc_domain_flush(domain.handle), 1);
    // Elsewhere, with the place of the old record; then over the old pages, in the other domain.
    char* at = next == &domain ? page(100) : page(0);
    rdmalloc_reg* second = next->get(at, kPage);
    ASSERT_EQ(second, first) << "the record is used again, or nothing is put to the test";
    auto before = domain.counters();
    rdmalloc_reg* found = domain.get(page(0), kPage);
    ASSERT_NE(found, nullptr);
    EXPECT_NE(found, second);
    EXPECT_EQ(rdmalloc_reg_addr(found), page(0));
    rdmalloc_key key;
    rdmalloc_reg_key_of(found, &key);
    EXPECT_EQ(fabric.use(key, page(0), kPage), StubFabric::Use::kRight);
    EXPECT_EQ(domain.counters().misses, before.misses + 1);
    EXPECT_EQ(domain.counters().hits, before.hits);
    rdmalloc_reg_put(found);
    rdmalloc_reg_put(second);
    // Leaves the one that the hint names to the flush of the second round.
    if (next == &domain) {
      ASSERT_EQ(rdmalloc_invalidate(domain.handle, page(0), kPage, nullptr, nullptr), 1);
    }
  }
}

// Readers hit while others register, evict, adopt and disown: what a reader is given covers what it
// asked for and is registered as long as it holds it. tsan: fails when links are plain pointers.
TEST_F(Foreign, hits_while_others_turn_the_tree_round) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = 300;
  StubDomain domain(fabric, attr);
  ASSERT_EQ(rdmalloc_adopt(page(0), kPages * kPage), 0);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  auto read = [&](unsigned seed) {
    std::minstd_rand random(seed);
    while (!stop) {
      char* at = page(random() % 400 * 8) + random() % kPage;
      rdmalloc_reg* reg = domain.get(at, 100);
      if (reg == nullptr) continue;
      auto* base = static_cast<char*>(rdmalloc_reg_addr(reg));
      rdmalloc_key key;
      rdmalloc_reg_key_of(reg, &key);
      if (at < base || at + 100 > base + rdmalloc_reg_length(reg) ||
          fabric.use(key, at, 100) != StubFabric::Use::kRight)
        ++wrong;
      rdmalloc_reg_put(reg);
    }
  };
  std::vector<std::thread> readers;
  for (unsigned i = 1; i <= 3; ++i) readers.emplace_back(read, i);
  std::minstd_rand random(99);
  // More where the readers don't get to run, and so have hit little.
  for (int round = 0; round < 3000 || domain.counters().hits < 1000; ++round) {
    char* at = page(random() % 400 * 8);
    std::size_t length = (1 + random() % 16) * kPage;
    if (round % 3 == 0) {
      int error = rdmalloc_disown(at, length);
      if (error == 0 && fabric.touches(at, length) && !stop) {
        // Another thread may have registered it for one use by now; but nothing is cached.
        rdmalloc_reg* none = domain.get(at, length, RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER);
        if (none != nullptr) ++wrong;
        rdmalloc_reg_put(none);
      }
      rdmalloc_adopt(at, length);
    } else {
      domain.touch(at, length);
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  auto* inside = rdmalloc::regcache::domain_of(domain.handle);
  rdmalloc::regcache::WholeGuard guard(*inside);
  EXPECT_TRUE(domain_is_valid(*inside));
}

// Fails when disown does not mark what is being made.
TEST_F(Foreign, memory_disowned_while_it_is_being_registered_is_not_cached) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(0), 4 * kPage), 0);
  fabric.before_enter = [&](void*, std::size_t) {
    EXPECT_EQ(rdmalloc_disown(page(0), 4 * kPage), -EBUSY) << "one is being made";
    EXPECT_EQ(rdmalloc_adopt(page(0), 4 * kPage), 0) << "by another owner, of other pages";
    return 0;
  };
  domain.touch(page(0), kPage);
  EXPECT_EQ(fabric.live(), 0u);
}

// Between the look whether it is adopted and the making, an eviction gives disown its moment. Fails
// when settle_made() does not ask again.
TEST_F(Foreign, memory_disowned_before_it_is_registered_is_not_cached) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = 1;
  StubDomain domain(fabric, attr);
  ASSERT_EQ(rdmalloc_adopt(page(0), 20 * kPage), 0);
  domain.touch(page(10), kPage);
  bool is_first = true;
  fabric.before_leave = [&](void*, std::size_t) {
    if (is_first) {
      EXPECT_EQ(rdmalloc_disown(page(0), 4 * kPage), 0);
    }
    is_first = false;
    return 0;
  };
  EXPECT_NE(domain.touch(page(0), kPage), 0u);
  EXPECT_EQ(fabric.live(), 0u);
}

// Fails when foreign_allowed() does not look at the setting.
TEST_F(Foreign, RDMALLOC_FOREIGN_says_what_is_served) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(0), kPage), 0);
  ASSERT_EQ(rdmalloc_adopt(page(3), kPage), 0);
  set_mode("adopted");
  EXPECT_NE(domain.touch(page(0), kPage), 0u);
  EXPECT_EQ(domain.get(page(1), kPage), nullptr);
  EXPECT_EQ(domain.last_error, -EPERM);
  EXPECT_EQ(domain.get(page(1), kPage, RDMALLOC_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(domain.last_error, -EPERM);
  set_mode("per-use");
  EXPECT_NE(domain.touch(page(1), kPage), 0u);
  EXPECT_NE(domain.touch(span(10, 1), 8), 0u) << "owned memory is not concerned";
}

// Fails when a word is misspelt in the message, or a bad one is taken.
TEST_F(Foreign, a_mode_that_is_not_understood_is_told_and_the_default_stays) {
  rdmalloc_test::Capture capture;
  set_mode("cached");
  std::string message = capture.end();
  EXPECT_EQ(
      message,
      "rdmalloc: warning: RDMALLOC_FOREIGN=cached is not understood; allowed: per-use, adopted, "
      "watch; using per-use\n");
  EXPECT_EQ(rdmalloc::options().foreign, rdmalloc::ForeignMode::kPerUse);
}

// Fails when rdmalloc_adopt() does not look at the arena.
TEST_F(Foreign, what_cannot_be_adopted_is_refused) {
  StubDomain domain(fabric);
  char* arena = span(0, 1);
  EXPECT_EQ(rdmalloc_adopt(arena + 10 * kSlice, 8), -EFAULT);
  EXPECT_EQ(rdmalloc_adopt(arena - 1, 2), -EFAULT);
  EXPECT_EQ(rdmalloc_adopt(arena - 1, 1), 0);
  EXPECT_EQ(rdmalloc_adopt(arena + fake::kArenaBytes - 1, 1), -EFAULT);
  EXPECT_EQ(rdmalloc_adopt(arena + fake::kArenaBytes, 1), 0);
  EXPECT_EQ(rdmalloc_disown(arena - 1, 1), 0);
  EXPECT_EQ(rdmalloc_disown(arena + fake::kArenaBytes, 1), 0);
  EXPECT_EQ(rdmalloc_adopt(map, 0), -EINVAL);
  EXPECT_EQ(rdmalloc_adopt(nullptr, 1), -EINVAL);
  EXPECT_EQ(rdmalloc_adopt(map, SIZE_MAX), -EINVAL);
  EXPECT_EQ(rdmalloc_disown(map, 0), -EINVAL);
  EXPECT_EQ(rdmalloc_disown(map, kPage), -ENOENT);
}

// Fails when adopted ranges are kept in memory that a child inherits.
TEST_F(Foreign, I11_a_child_has_adopted_nothing) {
  StubDomain domain(fabric);
  ASSERT_EQ(rdmalloc_adopt(page(0), 4 * kPage), 0);
  pid_t child = fork();
  if (child == 0) {
    StubFabric own_fabric;
    StubDomain own(own_fabric);
    if (own.touch(page(0), kPage) == 0) _exit(1);
    if (own_fabric.live() != 0) _exit(2);
    if (rdmalloc_adopt(page(0), kPage) != 0) _exit(3);
    own.touch(page(0), kPage);
    _exit(own_fabric.live() == 1 ? 0 : 4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// Adopting and disowning among 100,000 ranges looks at some tens of them. Each asks the tree at
// most three times, and a way down is 2 ln n = 23 ranges long, expected, so 150 are twice that.
// Seen to fail, by 20,468, with priorities that rise with the address, which make the tree a list.
TEST(ByteRanges, of_100000_a_change_looks_at_few) {
  static rdmalloc::regcache::PoolMemory memory;
  static rdmalloc::regcache::ByteRanges ranges;
  constexpr std::size_t kMany = 100000, kChanges = 1000, kMost = 150;
  for (std::size_t i = 0; i < kMany; ++i)
    ASSERT_EQ(ranges.add(memory, 4096 * 2 * (i + 1), 4096 * (2 * i + 3)), 0);
  ASSERT_EQ(ranges.count(), kMany);
  std::mt19937 random(5);
  std::uint64_t before = ranges.steps();
  for (std::size_t i = 0; i < kChanges; ++i) {
    std::uintptr_t low = 4096 * 2 * (1 + random() % kMany);
    ASSERT_EQ(ranges.remove(memory, low, low + 4096), 0);
    ASSERT_EQ(ranges.add(memory, low, low + 4096), 0);
  }
  EXPECT_LE((ranges.steps() - before) / (2 * kChanges), kMost);
  EXPECT_EQ(ranges.count(), kMany);
  ranges.clear();
}

// Disowning looks at some tens of registrations in each domain, of 100,000: thrice down the trees
// of a stripe and of what is wide (to invalidate, to account the end, to see what is left), each
// way 2 ln n or less for what it passes. Seen to fail, by 669, with priorities that rise with
// the address, which make each tree a list.
TEST_F(Foreign, disowning_one_of_100000_looks_at_few_in_each_domain) {
#if RDMALLOC_CHECKED
  constexpr std::size_t kMany = 100000, kChanges = 1000, kMost = 150;
  StubDomain domain(fabric), other(another_fabric(fabric.ops.flags));
  char* many = static_cast<char*>(mmap(nullptr, 2 * kMany * kPage, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(many, MAP_FAILED);
  ASSERT_EQ(rdmalloc_adopt(many, 2 * kMany * kPage), 0);
  for (std::size_t i = 0; i < kMany; ++i)
    for (StubDomain* one : {&domain, &other}) ASSERT_NE(one->touch(many + 2 * i * kPage, 8), 0u);
  ASSERT_EQ(fabric.live(), kMany);
  std::mt19937 random(5);
  std::uint64_t looks = 0;
  for (std::size_t i = 0; i < kChanges; ++i) {
    char* one = many + 2 * (random() % kMany) * kPage;
    std::uint64_t before = rdmalloc::regcache::tree_looks;
    ASSERT_EQ(rdmalloc_disown(one, kPage), 0);
    looks += rdmalloc::regcache::tree_looks - before;
    ASSERT_EQ(rdmalloc_adopt(one, kPage), 0);
    for (StubDomain* each : {&domain, &other}) ASSERT_NE(each->touch(one, 8), 0u);
  }
  EXPECT_GT(looks, kChanges) << "nothing was counted";
  EXPECT_LE(looks / (2 * kChanges), kMost);
  EXPECT_EQ(rdmalloc_disown(many, 2 * kMany * kPage), 0);
  EXPECT_EQ(fabric.live(), 0u);
  munmap(many, 2 * kMany * kPage);
#else
  GTEST_SKIP() << "SKIP: checked builds count what look-ups look at";
#endif
}

// Seen to fail when remove() stops at the first range, and when add() joins what does not touch;
// and by memory, when either keeps the records of ranges that are gone.
TEST(ByteRanges, equal_a_models) {
  static rdmalloc::regcache::PoolMemory memory;
  static rdmalloc::regcache::ByteRanges ranges;
  constexpr std::size_t kEnd = 300;
  std::vector<bool> model(kEnd);
  std::mt19937 random(3);
  for (int step = 0; step < 20000; ++step) {
    std::size_t low = random() % kEnd, high = low + 1 + random() % (kEnd - low);
    if (random() % 4 != 0) high = std::min(high, low + 5);
    auto begin = model.begin() + static_cast<std::ptrdiff_t>(low);
    auto end = model.begin() + static_cast<std::ptrdiff_t>(high);
    bool has_some = std::find(begin, end, true) != end;
    ASSERT_EQ(ranges.hold(low, high), std::find(begin, end, false) == end);
    rdmalloc::regcache::ByteRanges::Range found;
    ASSERT_EQ(ranges.find_first(low, high, &found), has_some);
    if (has_some) {
      auto first = static_cast<std::size_t>(std::find(begin, end, true) - model.begin());
      ASSERT_LE(found.low, first);
      ASSERT_GT(found.high, first);
    }
    bool adds = random() % 2 == 0;
    if (adds)
      ASSERT_EQ(ranges.add(memory, low, high), 0);
    else
      ASSERT_EQ(ranges.remove(memory, low, high), has_some ? 0 : -ENOENT);
    std::fill(begin, end, adds);
    std::size_t runs = 0;
    for (std::size_t i = 0; i < kEnd; ++i) runs += model[i] && (i == 0 || !model[i - 1]);
    ASSERT_EQ(ranges.count(), runs) << "neighbours are joined";
  }
  ranges.clear();
  EXPECT_EQ(ranges.count(), 0u);
  EXPECT_EQ(memory.chunks, 1u);
}

}  // namespace
