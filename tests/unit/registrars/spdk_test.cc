// The spdk registrar against a stand-in that keeps SPDK's rules and breaks its promises
// (fake_spdk.cc), loaded as a plugin is: nothing here links it. Each test was seen to fail; the
// comment at each says how.
#include <dlfcn.h>
#include <rdmalloc/registrar_spdk.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "tests/unit/registrars/fake_spdk.h"
#include "tests/unit/registrars/support.h"

namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kUnit = 2 * kMiB;

class Spdk : public testing::Test {
 protected:
  void SetUp() override {
    library = dlopen(FAKE_SPDK, RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(library, nullptr) << dlerror();
    spdk = reinterpret_cast<FakeSpdk* (*)()>(dlsym(library, "fake_spdk"))();
  }
  void TearDown() override {
    if (domain != nullptr) {
      EXPECT_EQ(rdmalloc_domain_close(domain), 0);
    }
    EXPECT_EQ(spdk->wrong_calls, 0u) << "SPDK was asked what it never grants";
    dlclose(library);
  }
  void open(const rdmalloc_spdk_attr* attr = nullptr) {
    ASSERT_EQ(rdmalloc_domain_open_spdk(attr, nullptr, &domain), 0);
  }
  rdmalloc_reg* get(void* addr, std::size_t length, std::uint32_t access = RDMALLOC_ACCESS_LOCAL) {
    rdmalloc_reg* reg = nullptr;
    error = rdmalloc_reg_get(domain, addr, length, access, &reg);
    return reg;
  }
  // A block of `length` that begins at a multiple of 2 MiB, `length` being one too.
  static char* chunks(std::size_t length) {
    return static_cast<char*>(rdmalloc_aligned_alloc(kUnit, length));
  }

  void* library = nullptr;
  FakeSpdk* spdk = nullptr;
  rdmalloc_domain* domain = nullptr;
  int error = 0;
};

// Without the library; first, since every other test loads it.
TEST(SpdkAbsent, without_spdk_in_the_program_no_domain_opens) {
  rdmalloc_domain* domain = nullptr;
  EXPECT_EQ(rdmalloc_domain_open_spdk(nullptr, nullptr, &domain), -ENOENT);
}

// Fails when a key of the second block registers again, or when ops.granularity is a page.
TEST_F(Spdk, blocks_of_one_chunk_share_its_registration) {
  open();
  char* one = static_cast<char*>(rdmalloc_malloc(100));
  char* other = static_cast<char*>(rdmalloc_malloc(100));
  rdmalloc_reg* first = get(one, 100);
  ASSERT_NE(first, nullptr) << error;
  rdmalloc_reg* second = get(other, 100);
  EXPECT_EQ(first, second);
  EXPECT_EQ(rdmalloc_reg_length(first), kUnit);
  EXPECT_EQ(spdk->registered, 1u);
  rdmalloc_reg_put(first);
  rdmalloc_reg_put(second);
  EXPECT_EQ(spdk->registered, 1u) << "kept for the next";
  EXPECT_EQ(rdmalloc_domain_flush(domain), 1);
  EXPECT_EQ(spdk->registered, 0u);
  rdmalloc_free(one);
  rdmalloc_free(other);
}

// Large blocks side by side meet in a chunk: their rounded ranges overlap, which SPDK refuses.
// Fails when take() registers whatever it is given (-EBUSY), or give_back() does not count.
TEST_F(Spdk, neighbours_that_meet_in_a_chunk_are_both_registered) {
  open();
  constexpr std::size_t kBytes = 5 * kMiB / 4;
  std::vector<char*> blocks;
  std::vector<rdmalloc_reg*> held;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(static_cast<char*>(rdmalloc_malloc(kBytes)));
    held.push_back(get(blocks.back(), kBytes));
    ASSERT_NE(held.back(), nullptr) << error;
  }
  std::uint64_t bytes = counters_of(domain).live_bytes;
  EXPECT_LT(spdk->registered * kUnit, bytes) << "no two of them met: the test shows nothing";
  // Every second one goes; what the others lie in stays.
  for (std::size_t i = 0; i < held.size(); i += 2) rdmalloc_reg_put(held[i]);
  rdmalloc_domain_flush(domain);
  for (std::size_t i = 1; i < held.size(); i += 2) {
    auto* translate = reinterpret_cast<std::uint64_t (*)(const void*, std::uint64_t*)>(
        dlsym(library, "spdk_vtophys"));
    for (std::size_t offset = 0; offset < kBytes; offset += kMiB / 4) {
      std::uint64_t length = 1;
      EXPECT_NE(translate(blocks[i] + offset, &length), UINT64_MAX);
    }
  }
  for (std::size_t i = 1; i < held.size(); i += 2) rdmalloc_reg_put(held[i]);
  rdmalloc_domain_flush(domain);
  EXPECT_EQ(spdk->registered, 0u);
  for (char* block : blocks) rdmalloc_free(block);
}

// SPDK has one map for a process. Seen to fail, by -EBUSY, when each domain had counts of its own.
TEST_F(Spdk, two_domains_share_what_they_both_register) {
  open();
  rdmalloc_domain* other = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_spdk(nullptr, nullptr, &other), 0);
  char* block = chunks(2 * kUnit);
  rdmalloc_reg* mine = get(block, 2 * kUnit);
  ASSERT_NE(mine, nullptr) << error;
  rdmalloc_reg* others = nullptr;
  ASSERT_EQ(rdmalloc_reg_get(other, block + kUnit, kUnit, RDMALLOC_ACCESS_LOCAL, &others), 0);
  EXPECT_EQ(spdk->registered, 2u);
  rdmalloc_reg_put(mine);
  EXPECT_EQ(rdmalloc_domain_flush(domain), 1);
  EXPECT_EQ(spdk->registered, 2u) << "the other's";
  rdmalloc_reg_put(others);
  EXPECT_EQ(rdmalloc_domain_close(other), 0);
  EXPECT_EQ(spdk->registered, 0u);
  rdmalloc_free(block);
}

// 25.09: success although a map refused. Fails when take() does not look.
TEST_F(Spdk, a_quiet_refusal_is_found_by_translation_and_nothing_stays) {
  open();
  char* block = chunks(4 * kUnit);
  spdk->temper = kRefusesQuietly;
  spdk->refused_unit = reinterpret_cast<std::uint64_t>(block + 2 * kUnit);
  EXPECT_EQ(get(block, 4 * kUnit), nullptr);
  EXPECT_EQ(error, -ENOMEM);
  EXPECT_EQ(spdk->registered, 0u) << "half registered";
  EXPECT_EQ(counters_of(domain).live_count, 0u);
  EXPECT_EQ(counters_of(domain).refusals, 1u);
  spdk->temper = kGood;
  rdmalloc_reg* reg = get(block, 4 * kUnit);
  EXPECT_NE(reg, nullptr) << "the next try works, but: " << error;
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
}

// Before 25.09: an error, with the region still marked. Fails when take() does not unregister then.
TEST_F(Spdk, a_refusal_arrives_and_nothing_stays) {
  open();
  char* block = chunks(4 * kUnit);
  spdk->temper = kRefusesAloud;
  spdk->refused_unit = reinterpret_cast<std::uint64_t>(block + 3 * kUnit);
  EXPECT_EQ(get(block, 4 * kUnit), nullptr);
  EXPECT_EQ(error, -EFAULT);
  EXPECT_EQ(spdk->registered, 0u);
  spdk->temper = kGood;
  rdmalloc_reg* reg = get(block, 4 * kUnit);
  EXPECT_NE(reg, nullptr) << error;
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
}

// Also by a map of the program's own, where vtophys has no say. Fails when is() leaves out the map.
TEST_F(Spdk, a_quiet_refusal_is_found_by_a_map_of_the_programs) {
  spdk->has_vtophys = 0;
  rdmalloc_spdk_attr attr = {};
  attr.size = sizeof attr;
  attr.map = reinterpret_cast<const spdk_mem_map*>(&attr);
  attr.untranslated = 5;
  open(&attr);
  char* block = chunks(kUnit);
  rdmalloc_reg_put(get(block, kUnit));
  EXPECT_EQ(error, 0);
  rdmalloc_domain_flush(domain);
  spdk->temper = kRefusesQuietly;
  EXPECT_EQ(get(block, kUnit), nullptr);
  EXPECT_EQ(error, -ENOMEM);
  EXPECT_EQ(spdk->registered, 0u);
  rdmalloc_free(block);
}

// Without PCI no memory has a physical address, and that says nothing. Fails when
// knows_spdks_memory() is not asked: everything would be refused.
TEST_F(Spdk, without_physical_addresses_registering_works) {
  spdk->has_vtophys = 0;
  open();
  char* block = chunks(kUnit);
  rdmalloc_reg_put(get(block, kUnit));
  EXPECT_EQ(error, 0);
  rdmalloc_free(block);
}

// What could not be taken back keeps its pages for ever.
class SpdkThatKeeps : public Spdk {
 protected:
  void keeps_its_pages(FakeSpdkTemper temper) {
    open();
    char* block = chunks(4 * kUnit);
    memset(block, 42, 4 * kUnit);
    rdmalloc_reg_put(get(block, 4 * kUnit));
    ASSERT_EQ(error, 0);
    spdk->temper = temper;
    spdk->refused_unit = reinterpret_cast<std::uint64_t>(block + kUnit);
    rdmalloc_free(block);
    rdmalloc_purge(0);
    EXPECT_EQ(counters_of(domain).quarantined, 1u);
    unsigned char is_resident[kUnit / 4096] = {};
    ASSERT_EQ(mincore(block + kUnit, kUnit, is_resident), 0);
    EXPECT_EQ(is_resident[0] & 1, 1) << "given back under a translation that is still there";
  }
};

// Fails when give_back() does not look: the pages go.
TEST_F(SpdkThatKeeps, I3_what_is_still_translated_keeps_its_pages) {
  keeps_its_pages(kKeepsQuietly);
}

TEST_F(SpdkThatKeeps, I3_what_spdk_refuses_to_take_back_keeps_its_pages) {
  keeps_its_pages(kKeepsAloud);
}

// What SPDK or the program registered is not ours to take back. Fails when take() unregisters after
// -EBUSY.
TEST_F(Spdk, a_region_of_the_programs_own_is_left_alone) {
  open();
  char* block = chunks(2 * kUnit);
  auto* enter = reinterpret_cast<int (*)(void*, std::size_t)>(dlsym(library, "spdk_mem_register"));
  auto* leave =
      reinterpret_cast<int (*)(void*, std::size_t)>(dlsym(library, "spdk_mem_unregister"));
  ASSERT_EQ(enter(block + kUnit, kUnit), 0);
  EXPECT_EQ(get(block, 2 * kUnit), nullptr);
  EXPECT_EQ(error, -EBUSY);
  EXPECT_EQ(spdk->registered, 1u);
  EXPECT_EQ(leave(block + kUnit, kUnit), 0);
  rdmalloc_free(block);
}

TEST_F(Spdk, remote_rights_are_refused) {
  open();
  char* block = chunks(kUnit);
  EXPECT_EQ(get(block, kUnit, RDMALLOC_ACCESS_REMOTE_READ), nullptr);
  EXPECT_EQ(error, -EACCES);
  rdmalloc_free(block);
}

// Fails when keeps_to_pages() is not asked: what lies beside would be registered too.
TEST_F(Spdk, foreign_memory_must_fill_its_2_mib) {
  open();
  char* room = static_cast<char*>(
      mmap(nullptr, 4 * kUnit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char* aligned = room + (kUnit - reinterpret_cast<std::uintptr_t>(room) % kUnit);
  EXPECT_EQ(get(aligned, kUnit / 2), nullptr);
  EXPECT_EQ(error, -EINVAL);
  rdmalloc_reg* reg = get(aligned, 2 * kUnit);
  EXPECT_NE(reg, nullptr) << error;
  EXPECT_EQ(spdk->registered, 2u);
  rdmalloc_reg_put(reg);
  EXPECT_EQ(spdk->registered, 0u);
  munmap(room, 4 * kUnit);
}

// A buffer that must lie in one region. Fails when pieces are not cut at multiples of `largest`.
TEST_F(Spdk, with_largest_of_2_mib_no_registration_crosses_a_region) {
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.largest = kUnit;
  ASSERT_EQ(rdmalloc_domain_open_spdk(nullptr, &attr, &domain), 0);
  char* block = chunks(4 * kUnit);
  rdmalloc_reg_put(get(block + kUnit + 100, kUnit - 100));
  EXPECT_EQ(error, 0);
  EXPECT_EQ(get(block + kUnit - 100, 200), nullptr);
  EXPECT_EQ(error, -EMSGSIZE);
  rdmalloc_free(block);
}

// Purges, gets and flushes of blocks that share chunks. Fails when the registrar's lock is left out
// (TSan: a race of the counts; otherwise wrong_calls).
TEST_F(Spdk, many_threads_share_chunks) {
  open();
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 200; ++i) {
        std::size_t bytes = (i % 3 + 1) * kMiB + kMiB / 8;
        void* block = rdmalloc_malloc(bytes);
        rdmalloc_reg* reg = nullptr;
        int result = rdmalloc_reg_get(domain, block, bytes, RDMALLOC_ACCESS_LOCAL, &reg);
        // Also where a chunk that the block shares would be purged: that purge is refused.
        if (result != 0) ++failures;
        rdmalloc_reg_put(reg);
        rdmalloc_free(block);
        if (i % 16 == static_cast<std::size_t>(t)) rdmalloc_purge(0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  rdmalloc_domain_flush(domain);
  EXPECT_EQ(spdk->registered, 0u);
  EXPECT_EQ(counters_of(domain).quarantined, 0u);
}

TEST_F(Spdk, a_domain_with_a_registration_held_does_not_close) {
  open();
  char* block = chunks(kUnit);
  rdmalloc_reg* reg = get(block, kUnit);
  EXPECT_EQ(rdmalloc_domain_close(domain), -EBUSY);
  EXPECT_EQ(spdk->registered, 1u);
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
}

// The child's calls would be calls into SPDK's devices. Fails when domain_close() does not tell a
// parent's domain.
TEST_F(Spdk, I11_a_fork_child_calls_nothing_of_spdks) {
  open();
  char* block = chunks(kUnit);
  rdmalloc_reg* reg = get(block, kUnit);
  std::uint64_t calls = spdk->register_calls + spdk->unregister_calls;
  pid_t child = fork();
  if (child == 0) {
    rdmalloc_reg* again = nullptr;
    int result = rdmalloc_reg_get(domain, block, kUnit, RDMALLOC_ACCESS_LOCAL, &again);
    rdmalloc_reg_put(reg);
    rdmalloc_free(block);
    rdmalloc_purge(0);
    bool is_right = result == -ECHILD && rdmalloc_domain_close(domain) == 0 &&
                    spdk->register_calls + spdk->unregister_calls == calls;
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(spdk->registered, 1u);
  rdmalloc_reg_put(reg);
  rdmalloc_free(block);
}

// Fails when a unit that was registered stays so after the next one is refused.
TEST_F(Spdk, I10_whatever_fails_is_undone) {
  auto open = [&](rdmalloc_domain** made) {
    return rdmalloc_domain_open_spdk(nullptr, nullptr, made);
  };
  fail_each({"spdk_find", "spdk_register", "registrar_memory"},
            [&] { return use_once(open, RDMALLOC_ACCESS_LOCAL); });
}

// Of two units the second is refused, and the first can't be given back. Fails when
// spdk_register() gives the first error.
TEST_F(Spdk, I3_half_a_registration_that_cannot_be_undone_keeps_its_pages) {
  namespace os = rdmalloc::os;
  open();
  char* block = chunks(2 * kUnit);
  os::arm_fault(os::Site::kSpdkRegister, 2);
  os::arm_fault(os::Site::kSpdkUnregister, 1);
  EXPECT_EQ(get(block, 2 * kUnit), nullptr);
  EXPECT_EQ(error, -ENOTRECOVERABLE);
  EXPECT_EQ(counters_of(domain).quarantined, 1u);
  memset(block, 5, 2 * kUnit);
  rdmalloc_free(block);
  rdmalloc_purge(0);
  EXPECT_EQ(block[100], 5) << "its pages went";
}

}  // namespace
