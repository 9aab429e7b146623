// The mlock registrar: BEHAVIOURS 15 with the kernel's own errors.
#include <rdmalloc/registrar_mlock.h>
#include <sys/mman.h>

#include "tests/unit/registrars/support.h"

namespace {

constexpr std::size_t kMiB = 1 << 20;

rdmalloc_reg* get(rdmalloc_domain* domain, void* addr, std::size_t length, int* error) {
  rdmalloc_reg* reg = nullptr;
  *error = rdmalloc_reg_get(domain, addr, length, RDMALLOC_ACCESS_LOCAL, &reg);
  return *error == 0 ? reg : nullptr;
}

// Fails when count_down() unlocks what another registration still covers.
TEST(Mlock, pages_stay_locked_until_their_last_registration_ends) {
  rdmalloc_domain* domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_mlock(nullptr, &domain), 0);
  char* foreign = static_cast<char*>(
      mmap(nullptr, 64 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  long before = status_kb("VmLck");
  int error = 0;
  rdmalloc_reg* whole = get(domain, foreign, 64 * 4096, &error);
  rdmalloc_reg* low = get(domain, foreign, 10 * 4096, &error);
  rdmalloc_reg* middle = get(domain, foreign + 5 * 4096, 20 * 4096, &error);
  ASSERT_EQ(error, 0);
  EXPECT_EQ(status_kb("VmLck") - before, 256);
  rdmalloc_reg_put(whole);
  EXPECT_EQ(status_kb("VmLck") - before, 100);
  rdmalloc_reg_put(low);
  EXPECT_EQ(status_kb("VmLck") - before, 80);
  rdmalloc_reg_put(middle);
  EXPECT_EQ(status_kb("VmLck") - before, 0);
  munmap(foreign, 64 * 4096);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
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
