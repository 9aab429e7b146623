// Checked builds: a registration whose pages were taken away behind the cache's back is found at
// the next hit, by page frames (regcache/core/page_frame_check.h). io_uring pins for real; the
// calls are raw ones, which no preload sees.
//
// Seen to fail: without page_frames_check() in rdmalloc_reg_get(), in take_found() and in
// hand_out(), one by one; with publish() filling the sticky slots of a domain that is watched; with
// frames compared of domains that do not pin; with a page counted as stale that was not there at
// registration; without the notes of purges.
#include <gtest/gtest.h>
#include <rdmalloc/registrar_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/kernel_has.h"
#include "tests/support/page_frames.h"

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 1 << 20;

// Small pages: of a huge one a part may be taken away as well, but not everywhere.
class PageFrameCheckDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    setenv("RDMALLOC_HUGE", "never", 1);
    rdmalloc_uring* uring = nullptr;
    if (int error = rdmalloc_test::io_uring_error())
      GTEST_SKIP() << "SKIP: no io_uring here: " << strerror(error);
    ASSERT_EQ(rdmalloc_domain_open_uring(nullptr, nullptr, &domain, &uring), 0);
    block = static_cast<char*>(rdmalloc_malloc(kBytes));
    ASSERT_NE(block, nullptr);
    memset(block, 1, kBytes);
  }
  void TearDown() override {
    rdmalloc_free(block);
    if (domain != nullptr) {
      EXPECT_EQ(rdmalloc_domain_close(domain), 0);
    }
  }
  // A get with its put; its generation, 0 when it failed.
  std::uint64_t touch(const char* at, std::size_t length) const {
    rdmalloc_reg* reg = nullptr;
    if (rdmalloc_reg_get(domain, at, length, RDMALLOC_ACCESS_LOCAL, &reg) != 0) return 0;
    rdmalloc_key key;
    rdmalloc_reg_key_of(reg, &key);
    rdmalloc_reg_put(reg);
    return key.generation;
  }
  std::uint64_t key(const char* at, std::size_t length) const {
    rdmalloc_key key = {};
    return rdmalloc_reg_key(domain, at, length, RDMALLOC_ACCESS_LOCAL, &key) == 0 ? key.generation
                                                                                  : 0;
  }
  static void take_away(char* at, std::size_t length) {
    ASSERT_EQ(syscall(SYS_madvise, at, length, MADV_DONTNEED), 0);
  }

  rdmalloc_domain* domain = nullptr;
  char* block = nullptr;
};

TEST_F(PageFrameCheckDeathTest, a_page_that_is_gone_ends_the_next_get) {
  EXPECT_DEATH(
      {
        touch(block, kBytes);
        take_away(block + 3 * kPage, kPage);
        touch(block, kBytes);
      },
      "a stale registration: io_uring registered 0x[0-9a-f]+ .*, and the page at 0x[0-9a-f]+ is "
      "gone.*history of that page.*registered .*io_uring generation .*in a call from 0x");
}

TEST_F(PageFrameCheckDeathTest, a_page_that_was_touched_again_ends_the_next_get) {
  if (!sees_page_frames()) GTEST_SKIP() << "SKIP: no right to see page frames";
  EXPECT_DEATH(
      {
        touch(block, kBytes);
        take_away(block + 3 * kPage, kPage);
        block[3 * kPage] = 1;
        touch(block, kBytes);
      },
      "the page at 0x[0-9a-f]+ is another page now");
}

TEST_F(PageFrameCheckDeathTest, uncounted_keys_are_compared_each_time) {
  EXPECT_DEATH(
      {
        if (key(block, kBytes) == 0 || key(block, kBytes) == 0) _exit(1);
        take_away(block + 3 * kPage, kPage);
        key(block, kBytes);
      },
      "a stale registration");
}

TEST_F(PageFrameCheckDeathTest, adopted_memory_whose_owner_breaks_its_word_is_found) {
  EXPECT_DEATH(
      {
        auto* foreign = static_cast<char*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (rdmalloc_adopt(foreign, kBytes) != 0 || touch(foreign, kBytes) == 0) _exit(1);
        if (touch(foreign, kBytes) == 0) _exit(1);
        take_away(foreign, kPage);
        touch(foreign, kBytes);
      },
      "a stale registration.*history.*adopted.*registered");
}

TEST_F(PageFrameCheckDeathTest, the_history_tells_of_purges) {
  EXPECT_DEATH(
      {
        std::uint64_t first = touch(block, kBytes);
        rdmalloc_free(block);
        rdmalloc_purge(0);
        block = static_cast<char*>(rdmalloc_malloc(kBytes));
        std::uint64_t second = touch(block, kBytes);
        if (first == 0 || second == 0 || first == second) _exit(1);
        take_away(block, kBytes);
        touch(block, kBytes);
      },
      "history.*registered.*a purge asked for.*deregistered by a purge.*the purge done with.*"
      "registered");
}

// A registrar's name lies in a plugin, which may be unloaded once its domain is closed. Seen to
// fail, by SIGSEGV, where the history pointed to it.
TEST_F(PageFrameCheckDeathTest, the_history_has_names_of_registrars_that_are_gone) {
  EXPECT_DEATH(
      {
        auto* plugin = static_cast<char*>(
            mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        rdmalloc_registrar_ops ops = {};
        ops.size = sizeof ops;
        ops.name = strcpy(plugin, "a plugin's registrar with a long name");
        ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
        ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
        ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
        rdmalloc_domain* own = domain;
        if (rdmalloc_domain_open(&ops, nullptr, nullptr, &domain) != 0) _exit(1);
        if (touch(block, kBytes) == 0 || rdmalloc_domain_close(domain) != 0) _exit(1);
        munmap(plugin, kPage);
        domain = own;
        touch(block, kBytes);
        take_away(block, kPage);
        touch(block, kBytes);
      },
      "history.*registered.*, a plugin's registrar wi generation .*deregistered.*io_uring");
}

// Of the pages that are asked for only.
TEST_F(PageFrameCheckDeathTest, what_is_not_asked_for_is_not_compared) {
  std::uint64_t generation = touch(block, kBytes);
  ASSERT_NE(generation, 0u);
  take_away(block + 3 * kPage, kPage);
  EXPECT_EQ(touch(block, 3 * kPage), generation);
  EXPECT_EQ(touch(block + 4 * kPage, kBytes - 4 * kPage), generation);
  EXPECT_EQ(touch(block + 3 * kPage - 1, 1), generation);
}

// No pin: the page may move whenever the kernel likes, and one that is taken away is not found.
TEST_F(PageFrameCheckDeathTest, registrars_that_do_not_pin_are_left_alone) {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "no pins";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  rdmalloc_domain_close(domain);
  domain = nullptr;
  ASSERT_EQ(rdmalloc_domain_open(&ops, nullptr, nullptr, &domain), 0);
  std::uint64_t generation = touch(block, kBytes);
  ASSERT_NE(generation, 0u);
  take_away(block, kBytes);
  EXPECT_EQ(touch(block, kBytes), generation);
  memset(block, 2, kBytes);
  EXPECT_EQ(touch(block, kBytes), generation);
}

// Pages that were never touched are there once they are pinned, and a child that writes to its copy
// leaves ours where they are.
TEST_F(PageFrameCheckDeathTest, new_pages_and_children_are_no_reason) {
  auto* fresh = static_cast<char*>(rdmalloc_malloc(4 * kBytes));
  std::uint64_t generation = touch(fresh, 4 * kBytes);
  ASSERT_NE(generation, 0u);
  for (int round = 0; round < 3; ++round) {
    pid_t child = fork();
    if (child == 0) {
      memset(fresh, 3, 2 * kBytes);
      _exit(0);
    }
    memset(fresh, round, 4 * kBytes);
    EXPECT_EQ(touch(fresh, 4 * kBytes), generation);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(touch(fresh, 4 * kBytes), generation);
  }
  rdmalloc_free(fresh);
}

}  // namespace
