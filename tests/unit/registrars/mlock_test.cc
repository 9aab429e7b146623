// The mlock registrar, with the kernel's own errors.
#include <rdmalloc/registrar_mlock.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/support/counters.h"
#include "tests/unit/registrars/support.h"

static std::atomic<int> munlock_calls{0};

// In front of libc's, which the registrar calls.
extern "C" int munlock(const void* base, size_t length) noexcept {
  munlock_calls++;
  return static_cast<int>(syscall(SYS_munlock, base, length));
}

namespace {

constexpr std::size_t kMiB = 1 << 20;

rdmalloc_reg* get(rdmalloc_domain* domain, void* addr, std::size_t length, int* error) {
  rdmalloc_reg* reg = nullptr;
  *error = rdmalloc_reg_get(domain, addr, length, RDMALLOC_ACCESS_LOCAL, &reg);
  return *error == 0 ? reg : nullptr;
}

// A domain, and 64 pages of foreign memory; or more.
class MlockForeign : public ::testing::Test {
 protected:
  static constexpr std::size_t kPage = 4096;
  void TearDown() override {
    munmap(foreign, bytes);
    EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  }
  void map(std::size_t length = 64 * kPage) {
    ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &domain), 0);
    bytes = length;
    foreign = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    before_kb_ = status_kb("VmLck");
  }
  long locked_kb() const { return status_kb("VmLck") - before_kb_; }

  rdmalloc_domain* domain = nullptr;
  char* foreign = nullptr;
  std::size_t bytes = 0;
  int error = 0;

 private:
  long before_kb_ = 0;
};

// Fails when count_down() unlocks what another registration still covers.
TEST_F(MlockForeign, pages_stay_locked_until_their_last_registration_ends) {
  ASSERT_NO_FATAL_FAILURE(map());
  rdmalloc_reg* whole = get(domain, foreign, 64 * kPage, &error);
  rdmalloc_reg* low = get(domain, foreign, 10 * kPage, &error);
  rdmalloc_reg* middle = get(domain, foreign + 5 * kPage, 20 * kPage, &error);
  ASSERT_EQ(error, 0);
  EXPECT_EQ(locked_kb(), 256);
  rdmalloc_reg_put(whole);
  EXPECT_EQ(locked_kb(), 100);
  rdmalloc_reg_put(low);
  EXPECT_EQ(locked_kb(), 80);
  rdmalloc_reg_put(middle);
  EXPECT_EQ(locked_kb(), 0);
}

// Seen to fail: every bound of a registration that has ended stayed, so that an old one was of ever
// more segments, and was unlocked by 64 calls.
TEST_F(MlockForeign, registrations_that_have_ended_leave_no_cuts) {
  ASSERT_NO_FATAL_FAILURE(map());
  rdmalloc_reg* whole = get(domain, foreign, 64 * kPage, &error);
  rdmalloc_reg* low = get(domain, foreign, 32 * kPage, &error);
  for (std::size_t page = 0; page < 64; page += 2)
    rdmalloc_reg_put(get(domain, foreign + page * kPage, kPage, &error));
  ASSERT_EQ(error, 0);
  int before = munlock_calls;
  rdmalloc_reg_put(whole);
  EXPECT_EQ(munlock_calls - before, 1);
  EXPECT_EQ(locked_kb(), 128);
  rdmalloc_reg_put(low);
  EXPECT_EQ(munlock_calls - before, 2);
  EXPECT_EQ(locked_kb(), 0);
}

// Seen to fail when each domain counted for itself: the put of one unlocked the other's pages.
TEST(Mlock, domains_of_a_process_count_together) {
  rdmalloc_domain *one = nullptr, *other = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &one), 0);
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &other), 0);
  char* foreign = static_cast<char*>(
      mmap(nullptr, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  long before = status_kb("VmLck");
  int error = 0;
  rdmalloc_reg* first = get(one, foreign, 64 * 4096, &error);
  rdmalloc_reg* second = get(other, foreign, 64 * 4096, &error);
  ASSERT_EQ(error, 0);
  rdmalloc_reg_put(first);
  EXPECT_EQ(rdmalloc_domain_close(one), 0);
  EXPECT_EQ(status_kb("VmLck") - before, 256);
  rdmalloc_reg_put(second);
  EXPECT_EQ(status_kb("VmLck") - before, 0);
  munmap(foreign, 64 * 4096);
  EXPECT_EQ(rdmalloc_domain_close(other), 0);
}

// Foreign memory that was mapped anew under a registration: the new pages are locked for the next
// one, though the first has not ended. Fails when count_up() locks only what is not counted.
TEST(Mlock, pages_mapped_under_an_old_registration_are_locked_anew) {
  rdmalloc_domain* domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &domain), 0);
  auto map = [](void* at, int flags) {
    return static_cast<char*>(
        mmap(at, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
  };
  char* foreign = map(nullptr, 0);
  long before = status_kb("VmLck");
  int error = 0;
  rdmalloc_reg* old = get(domain, foreign + 4096, 62 * 4096, &error);
  ASSERT_EQ(error, 0);
  ASSERT_EQ(map(foreign, MAP_FIXED), foreign);
  EXPECT_EQ(status_kb("VmLck") - before, 0);
  rdmalloc_reg* next = get(domain, foreign, 64 * 4096, &error);
  ASSERT_EQ(error, 0);
  EXPECT_EQ(status_kb("VmLck") - before, 256);
  rdmalloc_reg_put(old);
  EXPECT_EQ(status_kb("VmLck") - before, 256);
  rdmalloc_reg_put(next);
  EXPECT_EQ(status_kb("VmLck") - before, 0);
  munmap(foreign, 64 * 4096);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

// The kernel locks what lies before a page that it can't lock. Seen to fail when count_up() undid
// whole calls only; and when it unlocked the pages of a registration that is held.
TEST_F(MlockForeign, a_lock_that_fails_half_way_leaves_nothing_locked) {
  ASSERT_NO_FATAL_FAILURE(map());
  ASSERT_EQ(munmap(foreign + 40 * kPage, kPage), 0);
  EXPECT_EQ(get(domain, foreign, 64 * kPage, &error), nullptr);
  EXPECT_EQ(error, -ENOMEM);
  EXPECT_EQ(locked_kb(), 0);
  // What is held stays locked, also where the page is one of its own by now.
  rdmalloc_reg* held = get(domain, foreign + 10 * kPage, 10 * kPage, &error);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(get(domain, foreign, 64 * kPage, &error), nullptr);
  EXPECT_EQ(locked_kb(), 40);
  ASSERT_EQ(munmap(foreign + 19 * kPage, kPage), 0);
  EXPECT_EQ(get(domain, foreign, 64 * kPage, &error), nullptr);
  EXPECT_EQ(locked_kb(), 36);
  rdmalloc_reg_put(held);
  EXPECT_EQ(locked_kb(), 0);
  EXPECT_EQ(counters_of(domain).quarantined, 0u);
}

// Seen to fail when one call of munlock was taken for all: it stops at the first hole.
TEST_F(MlockForeign, pages_behind_one_that_was_unmapped_are_unlocked) {
  ASSERT_NO_FATAL_FAILURE(map());
  rdmalloc_reg* held = get(domain, foreign, 63 * kPage, &error);
  ASSERT_EQ(error, 0);
  for (std::size_t page : {0, 20, 21, 50, 62}) ASSERT_EQ(munmap(foreign + page * kPage, kPage), 0);
  EXPECT_EQ(locked_kb(), 58 * 4);
  rdmalloc_reg_put(held);
  EXPECT_EQ(locked_kb(), 0);
  EXPECT_EQ(counters_of(domain).quarantined, 0u);
}

// Seen to fail when each half that is not there was halved again: 2,047 calls.
TEST_F(MlockForeign, a_range_that_was_unmapped_as_a_whole_costs_few_calls) {
  ASSERT_NO_FATAL_FAILURE(map(4 * kMiB));
  rdmalloc_reg* held = get(domain, foreign, bytes, &error);
  ASSERT_EQ(error, 0);
  ASSERT_EQ(munmap(foreign, bytes), 0);
  int before = munlock_calls;
  rdmalloc_reg_put(held);
  EXPECT_GT(munlock_calls, before);
  EXPECT_LE(munlock_calls - before, 128);
}

// The kernel itself refuses to decommit locked pages: a purge that came before deregistration would
// fail. Fails when on_purge() does not drop.
TEST(Mlock, I3_unlocked_before_the_pages_go) {
  rdmalloc_domain* domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &domain), 0);
  char* block = static_cast<char*>(rdmalloc_malloc(8 * kMiB));
  memset(block, 1, 8 * kMiB);
  int error = 0;
  rdmalloc_reg_put(get(domain, block, 8 * kMiB, &error));
  ASSERT_EQ(error, 0);
  EXPECT_GE(status_kb("VmLck"), 8192);
  rdmalloc_free(block);
  EXPECT_GE(rdmalloc_purge(0), static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(status_kb("VmLck"), 0);
  EXPECT_EQ(counters_of(domain).purge_drops, 1u);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

// In a child, so that the limit is real. Blocks of 1 MiB; returns how many could be registered
// while all are held, or 50 and more when something was lost.
int registered_under(rlim_t limit) {
  return unprivileged_with_memlock(limit, [] {
    rdmalloc_domain* domain = nullptr;
    if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0) return 50;
    rdmalloc_reg* held[16] = {};
    char* blocks[16] = {};
    int count = 0, error = 0;
    for (int i = 0; i < 16; ++i) {
      blocks[i] = static_cast<char*>(rdmalloc_malloc(kMiB));
      held[i] = get(domain, blocks[i], kMiB, &error);
      if (held[i] != nullptr) ++count;
      if (held[i] == nullptr && error != -ENOMEM && error != -EPERM) return 51;
      memset(blocks[i], 1, kMiB);  // usable all the same
    }
    if (counters_of(domain).live_count != static_cast<std::uint64_t>(count)) return 52;
    for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
    // Idle ones make room (I12): one after the other, every block can be registered.
    for (char* block : blocks) {
      rdmalloc_reg* reg = count != 0 ? get(domain, block, kMiB, &error) : nullptr;
      if (count != 0 && reg == nullptr) return 53;
      rdmalloc_reg_put(reg);
    }
    if (rdmalloc_domain_close(domain) != 0 || status_kb("VmLck") != 0) return 54;
    return count;
  });
}

TEST(Mlock, I12_under_memlock_limits) {
  EXPECT_EQ(registered_under(0), 0);
  EXPECT_EQ(registered_under(64 << 10), 0);
  int eight = registered_under(8 << 20);
  EXPECT_GE(eight, 1);
  EXPECT_LE(eight, 8);
}

// 64 KiB: no span fits, but sixteen pages do. Fails when make_local() does not try the block's
// pages after its span, or when the kernel is asked for what can't be.
TEST(Mlock, I12_small_blocks_are_registered_by_pages_where_room_ends) {
  EXPECT_EQ(unprivileged_with_memlock(
                64 << 10,
                [] {
                  rdmalloc_domain* domain = nullptr;
                  if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0) return 50;
                  constexpr int kBlocks = 20;
                  char* block = static_cast<char*>(rdmalloc_malloc(kBlocks * 4096));
                  block += -reinterpret_cast<std::uintptr_t>(block) & 4095;
                  rdmalloc_reg* held[kBlocks] = {};
                  int error = 0, count = 0;
                  for (int i = 0; i < kBlocks - 1; ++i)
                    if ((held[i] = get(domain, block + i * 4096, 4096, &error)) != nullptr) ++count;
                  if (count != 16 || error != -ENOMEM) return 51;
                  auto full = counters_of(domain);
                  if (full.live_bytes != 64 << 10 || status_kb("VmLck") != 64) return 52;
                  if (full.memlock_limit_bytes != 64 << 10 || full.memlock_left_bytes != 0)
                    return 53;
                  // Each time the span, and then three times the page: the kernel was never asked.
                  if (full.refusals != 0 || full.memlock_refusals != 19 + 3) return 54;
                  for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
                  // Idle ones make room, one for one.
                  if (get(domain, block + 18 * 4096, 4096, &error) == nullptr) return 55;
                  if (counters_of(domain).evictions != 1) return 56;
                  return 0;
                }),
            0);
}

// Exactly so, whatever was registered between. Fails when make_memlock_room() does not make the
// order of puts exact: they would be as one.
TEST(Mlock, I12_the_least_recently_put_makes_room_first) {
  EXPECT_EQ(
      unprivileged_with_memlock(7 << 20,
                                [] {
                                  rdmalloc_domain* domain = nullptr;
                                  if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0) return 50;
                                  char* blocks[4] = {};
                                  int error = 0;
                                  for (char*& block : blocks)
                                    block = static_cast<char*>(rdmalloc_malloc(2 * kMiB));
                                  for (int i : {0, 1, 2, 1, 2, 0}) {
                                    rdmalloc_reg_put(get(domain, blocks[i], 2 * kMiB, &error));
                                    if (error != 0) return 51;
                                  }
                                  if (counters_of(domain).misses != 3) return 52;
                                  rdmalloc_reg_put(get(domain, blocks[3], 2 * kMiB, &error));
                                  if (error != 0 || counters_of(domain).evictions != 1) return 53;
                                  for (int i : {0, 1, 2}) {
                                    rdmalloc_reg* reg = nullptr;
                                    int found = rdmalloc_reg_get(
                                        domain, blocks[i], 2 * kMiB,
                                        RDMALLOC_ACCESS_LOCAL | RDMALLOC_NO_REGISTER, &reg);
                                    if (found != (i == 1 ? -ENOENT : 0)) return 54 + i;
                                    rdmalloc_reg_put(reg);
                                  }
                                  return 0;
                                }),
      0);
}

// Two domains share the limit of the process. Fails when make_memlock_room() looks for idle
// registrations in its own domain only.
TEST(Mlock, I12_idle_registrations_of_other_domains_make_room) {
  EXPECT_EQ(unprivileged_with_memlock(
                8 << 20,
                [] {
                  rdmalloc_domain* domains[2] = {};
                  for (rdmalloc_domain*& domain : domains)
                    if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0) return 50;
                  auto* one = static_cast<char*>(rdmalloc_malloc(6 * kMiB));
                  auto* other = static_cast<char*>(rdmalloc_malloc(6 * kMiB));
                  int error = 0;
                  rdmalloc_reg_put(get(domains[0], one, 6 * kMiB, &error));
                  if (error != 0) return 51;
                  rdmalloc_reg* held = get(domains[1], other, 6 * kMiB, &error);
                  if (held == nullptr || counters_of(domains[0]).evictions != 1) return 52;
                  // What is held makes none.
                  if (get(domains[0], one, 6 * kMiB, &error) != nullptr || error != -ENOMEM)
                    return 53;
                  if (counters_of(domains[1]).live_count != 1) return 54;
                  return counters_of(domains[0]).refusals == 0 ? 0 : 55;
                }),
            0);
}

// A registrar that says it locks pages, and does not.
rdmalloc_registrar_ops pretender(std::uint32_t flags) {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "pretender";
  ops.flags = RDMALLOC_REGISTRAR_SYNC_DEREG | flags;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  return ops;
}

// Fails when make_memlock_room() evicts what counts elsewhere, or calls a registrar that is for its
// own users' threads.
TEST(Mlock, I12_idle_registrations_that_make_no_room_stay) {
  for (std::uint32_t flags : {RDMALLOC_REGISTRAR_ANY_THREAD, RDMALLOC_REGISTRAR_LOCKS})
    EXPECT_EQ(unprivileged_with_memlock(
                  8 << 20,
                  [flags] {
                    rdmalloc_registrar_ops ops = pretender(flags);
                    rdmalloc_domain *domain = nullptr, *other = nullptr;
                    if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0 ||
                        rdmalloc_domain_open(&ops, nullptr, nullptr, &other) != 0)
                      return 50;
                    void *one = rdmalloc_malloc(6 * kMiB), *two = rdmalloc_malloc(6 * kMiB);
                    int error = 0;
                    rdmalloc_reg_put(get(other, one, 6 * kMiB, &error));
                    if (error != 0) return 51;
                    if (get(domain, two, 6 * kMiB, &error) == nullptr) return 52;
                    if (get(domain, one, 6 * kMiB, &error) != nullptr || error != -ENOMEM)
                      return 53;
                    return counters_of(other).evictions == 0 ? 0 : 54;
                  }),
              0)
        << flags;
}

// The kernel knows the limit better. Fails when its refusal is the last word on a slab.
TEST(Mlock, I12_pages_are_asked_for_where_the_kernel_refuses_a_slab) {
  EXPECT_EQ(unprivileged_with_memlock(
                8 << 20,
                [] {
                  rdmalloc_registrar_ops ops =
                      pretender(RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_LOCKS);
                  ops.register_ = [](void*, void*, size_t length, uint32_t, rdmalloc_key*) {
                    return length > 4096 ? -ENOMEM : 0;
                  };
                  rdmalloc_domain* domain = nullptr;
                  if (rdmalloc_domain_open(&ops, nullptr, nullptr, &domain)) return 50;
                  int error = 0;
                  get(domain, rdmalloc_malloc(64), 64, &error);
                  return -error;
                }),
            0);
}

// Fails when no privilege is looked for: root's registrations would be cut for nothing.
TEST(Mlock, a_process_that_may_lock_without_limit_is_not_limited) {
  pid_t child = fork();
  if (child == 0) {
    rlimit limit = {64 << 10, 64 << 10};
    if (geteuid() != 0) _exit(77);
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(99);
    void* probe = mmap(nullptr, kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mlock(probe, kMiB) != 0) _exit(77);  // root in name only
    rdmalloc_domain* domain = nullptr;
    if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0) _exit(1);
    int error = 0;
    if (get(domain, rdmalloc_malloc(kMiB), kMiB, &error) == nullptr) _exit(2);
    _exit(counters_of(domain).memlock_limit_bytes == UINT64_MAX ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "SKIP: no CAP_IPC_LOCK here to be seen";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// As in a rootless container. Seen to fail, with no limit, where CAP_IPC_LOCK was enough: there it
// is not the kernel's own, which refuses.
TEST(Mlock, root_of_a_user_namespace_is_limited) {
  pid_t child = fork();
  if (child == 0) {
    rlimit limit = {kMiB, kMiB};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(99);
    if (unshare(CLONE_NEWUSER) != 0) _exit(77);
    void* probe = mmap(nullptr, 2 * kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mlock(probe, 2 * kMiB) == 0) _exit(98);
    rdmalloc_domain* domain = nullptr;
    if (rdmalloc_domain_open_mlock(nullptr, &domain) != 0) _exit(1);
    int error = 0;
    if (get(domain, rdmalloc_malloc(64 << 10), 64 << 10, &error) == nullptr) _exit(2);
    _exit(counters_of(domain).memlock_limit_bytes == kMiB ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "SKIP: no user namespace here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Fails when the numbers of pools and prefaults leave RLIMIT_MEMLOCK out: pages would be locked
// before the kernel refuses.
TEST(Mlock, pools_and_prefaults_that_exceed_it_are_refused_at_once) {
  EXPECT_EQ(unprivileged_with_memlock(
                8 << 20,
                [] {
                  rdmalloc_domain_attr limits = {};
                  limits.size = sizeof limits;
                  limits.largest = kMiB;
                  rdmalloc_domain* domain = nullptr;
                  if (rdmalloc_domain_open_mlock(&limits, &domain) != 0) return 50;
                  auto* block = static_cast<char*>(rdmalloc_malloc(16 * kMiB));
                  iovec range = {block, 16 * kMiB};
                  if (rdmalloc_reg_prefault(&domain, 1, &range, 1, 2, nullptr, nullptr) != -ENOMEM)
                    return 51;
                  if (counters_of(domain).misses != 0) return 52;
                  range.iov_len = 4 * kMiB;
                  if (rdmalloc_reg_prefault(&domain, 1, &range, 1, 2, nullptr, nullptr) != 0)
                    return 53;
                  if (status_kb("VmLck") != 4096) return 54;
                  rdmalloc_pool_attr attr = {};
                  attr.size = sizeof attr;
                  attr.small_bytes = 4096;
                  attr.small_count = 4096;
                  attr.large_count = RDMALLOC_POOL_NONE;
                  std::uint32_t small = 0, large = 0;
                  if (rdmalloc_pool_fit(&domain, 1, &attr, &small, &large) != 0) return 55;
                  // What the prefault left is idle, and makes room.
                  if (small != 2048) return 56;
                  rdmalloc_pool* pool = nullptr;
                  if (rdmalloc_pool_create(&domain, 1, &attr, &pool) != -ENOMEM) return 57;
                  if (counters_of(domain).refusals != 0) return 58;
                  attr.small_count = small;
                  if (rdmalloc_pool_create(&domain, 1, &attr, &pool) != 0) return 59;
                  return status_kb("VmLck") == 8192 ? 0 : 60;
                }),
            0);
}

// Fails when the registrar claims REOPEN: no range was quarantined any more, though it is locked.
TEST(Mlock, what_could_not_be_unlocked_stays_quarantined_over_a_quiesce) {
  rdmalloc_domain* domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &domain), 0);
  long before = status_kb("VmLck");
  void* block = rdmalloc_malloc(kMiB);
  int error = 0;
  rdmalloc_reg_put(get(domain, block, kMiB, &error));
  ASSERT_EQ(error, 0);
  ASSERT_NE(rdmalloc_fault_arm("munlock", 1), 0);
  EXPECT_EQ(rdmalloc_invalidate(domain, block, kMiB, nullptr, nullptr), 1);
  rdmalloc_fault_arm("munlock", 0);
  std::uint64_t quarantined = rdmalloc_test::counter("stats.quarantined_bytes");
  EXPECT_GE(quarantined, kMiB);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  ASSERT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(status_kb("VmLck") - before, 1024);
  EXPECT_EQ(rdmalloc_test::counter("stats.quarantined_bytes"), quarantined);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

TEST(Mlock, remote_rights_are_refused) {
  rdmalloc_domain* domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &domain), 0);
  void* block = rdmalloc_malloc(kMiB);
  rdmalloc_reg* reg = nullptr;
  EXPECT_EQ(rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_REMOTE_READ, &reg), -ENOTSUP);
  rdmalloc_free(block);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

}  // namespace
