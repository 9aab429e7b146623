// Behaviours of docs/behaviours.md, "Registration cache", over pages that are really pinned: what
// an io_uring writes from a registered block must be what the CPU sees there.
//
// Each was seen to fail; the comment at each says how.
#include <gtest/gtest.h>
#include <liburing.h>
#include <rdmalloc/registrar_uring.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/kernel_has.h"
#include "tests/support/process.h"

namespace {

constexpr std::size_t kBytes = 1 << 20;

long pinned_bytes() {
  return static_cast<long>(rdmalloc_test::status_kib("VmPin")) * 1024;
}

class UringBehaviours : public testing::Test {
 protected:
  void SetUp() override {
    // VmPin counts a huge page whole when a part of it is registered.
    setenv("RDMALLOC_HUGE", "never", 1);
    pinned_before = pinned_bytes();
    file = memfd_create("uring_behaviours", MFD_CLOEXEC);
    if (int error = rdmalloc_test::io_uring_error())
      GTEST_SKIP() << "SKIP: no io_uring here: " << strerror(error);
    ASSERT_EQ(rdmalloc_domain_open_uring(nullptr, nullptr, &domain, &uring), 0);
  }
  void TearDown() override {
    if (domain != nullptr) {
      EXPECT_EQ(rdmalloc_domain_close(domain), 0);
      EXPECT_EQ(pinned_bytes(), pinned_before);
    }
    close(file);
  }
  rdmalloc_domain_counters counters() const {
    rdmalloc_domain_counters now = {};
    now.size = sizeof now;
    rdmalloc_domain_stats(domain, &now);
    return now;
  }
  rdmalloc_reg* get(const void* at, std::size_t length) const {
    rdmalloc_reg* reg = nullptr;
    last_error = rdmalloc_reg_get(domain, at, length, RDMALLOC_ACCESS_LOCAL, &reg);
    return last_error == 0 ? reg : nullptr;
  }
  static rdmalloc_key key_of(const rdmalloc_reg* reg) {
    rdmalloc_key key;
    rdmalloc_reg_key_of(reg, &key);
    return key;
  }
  // Writes the bytes to a place of the file by the registration that is held, and reads them back.
  bool sends(const rdmalloc_reg* reg, const char* bytes, std::size_t length, int place) {
    auto offset = static_cast<off_t>(kBytes) * place;
    {
      std::lock_guard<std::mutex> guard(ring_lock);
      io_uring_sqe* sqe = io_uring_get_sqe(rdmalloc_uring_ring(uring));
      io_uring_prep_write_fixed(sqe, file, bytes, static_cast<unsigned>(length),
                                static_cast<std::uint64_t>(offset),
                                static_cast<int>(key_of(reg).lkey));
      sqe->user_data = 1;
      io_uring_cqe done = {};
      if (io_uring_submit(rdmalloc_uring_ring(uring)) != 1 ||
          rdmalloc_uring_reap(uring, &done, 1, true) != 1 || done.res != static_cast<int>(length))
        return false;
    }
    std::vector<char> arrived(length);
    return pread(file, arrived.data(), length, offset) == static_cast<ssize_t>(length) &&
           memcmp(arrived.data(), bytes, length) == 0;
  }
  // Registers, sends and puts; the generation, 0 when it failed or other bytes arrived.
  std::uint64_t transfer(const char* bytes, std::size_t length, int place = 0) {
    rdmalloc_reg* reg = get(bytes, length);
    if (reg == nullptr) return 0;
    std::uint64_t generation = key_of(reg).generation;
    bool is_right = sends(reg, bytes, length, place);
    rdmalloc_reg_put(reg);
    return is_right ? generation : 0;
  }

  long pinned_before = 0;
  int file = -1;
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  std::mutex ring_lock;
  mutable std::atomic<int> last_error{0};
};

// Fails when on_purge() agrees without deregistering.
TEST_F(UringBehaviours, ten_threads_that_release_and_reuse_addresses_see_no_old_page) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 10; ++thread)
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 60; ++round) {
        auto* block = static_cast<char*>(rdmalloc_malloc(kBytes / 4));
        memset(block, 'a' + (thread + round) % 26, kBytes / 4);
        if (transfer(block, kBytes / 4, thread) == 0) ++wrong;
        rdmalloc_free(block);
        if (round % 4 == thread % 4) rdmalloc_purge(0);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(counters().purge_drops, 0u) << "nothing was put to the test";
}

// Fails when on_purge() agrees without deregistering, and when make_local() plans for a single use.
TEST_F(UringBehaviours, registering_again_is_skipped_exactly_when_the_pages_stayed) {
  auto* block = static_cast<char*>(rdmalloc_malloc(kBytes));
  memset(block, 1, kBytes);
  std::uint64_t first = transfer(block, kBytes);
  ASSERT_NE(first, 0u);
  rdmalloc_free(block);
  auto* again = static_cast<char*>(rdmalloc_malloc(kBytes));
  ASSERT_EQ(again, block) << "a buffer takes its own place (docs/design.md, Places)";
  memset(again, 2, kBytes);
  EXPECT_EQ(transfer(again, kBytes), first);
  EXPECT_EQ(counters().registrations, 1u);
  rdmalloc_free(again);
  ASSERT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(pinned_bytes(), pinned_before);
  again = static_cast<char*>(rdmalloc_malloc(kBytes));
  memset(again, 3, kBytes);
  std::uint64_t second = transfer(again, kBytes);
  EXPECT_NE(second, 0u);
  EXPECT_NE(second, first);
  rdmalloc_free(again);
}

// Fails when the completion is left out, and, by hanging, when an invalidation drops what is held.
TEST_F(UringBehaviours, invalidations_beside_threads_that_write_and_send) {
  constexpr int kThreads = 3;
  std::vector<char*> blocks;
  for (int i = 0; i < kThreads; ++i)
    blocks.push_back(static_cast<char*>(rdmalloc_malloc(kBytes / 4)));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, sent{0}, completed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      char* block = blocks[static_cast<std::size_t>(thread)];
      for (int round = 0; !stop; ++round, ++sent) {
        memset(block, round, kBytes / 4);
        if (transfer(block, kBytes / 4, thread) == 0) ++wrong;
      }
    });
  int asked = 0;
  for (; asked < 500 || (sent < 100 && wrong == 0); ++asked) {
    std::int64_t found = rdmalloc_invalidate(
        domain, blocks[static_cast<std::size_t>(asked % kThreads)], kBytes / 4,
        [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &completed);
    if (found < 0) ++wrong;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(completed, asked) << "each completes once, at the latest with the last put";
  for (char* block : blocks) rdmalloc_free(block);
}

// An io_uring pins for writing. Fails when ask_registrar() takes a refusal for a success.
TEST_F(UringBehaviours, memory_that_cannot_be_written_is_refused_and_nothing_is_left) {
  auto* pages =
      static_cast<char*>(mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  for (bool is_adopted : {false, true}) {
    if (is_adopted) {
      ASSERT_EQ(rdmalloc_adopt(pages, kBytes), 0);
    }
    EXPECT_EQ(get(pages, kBytes), nullptr);
    EXPECT_EQ(last_error, -EFAULT);
    EXPECT_EQ(counters().live_count, 0u);
    EXPECT_EQ(pinned_bytes(), pinned_before);
  }
  ASSERT_EQ(mprotect(pages, kBytes, PROT_READ | PROT_WRITE), 0);
  memset(pages, 5, kBytes);
  EXPECT_NE(transfer(pages, kBytes), 0u) << "the next try works";
  EXPECT_EQ(counters().live_count, 1u);
  EXPECT_EQ(rdmalloc_disown(pages, kBytes), 0);
  munmap(pages, kBytes);
}

// Fails when map_wiped_on_fork() leaves the parent's memory to the child.
TEST_F(UringBehaviours, I11_a_parents_transfers_stay_right_beside_a_writing_child) {
  auto* block = static_cast<char*>(rdmalloc_malloc(kBytes));
  memset(block, 1, kBytes);
  std::uint64_t first = transfer(block, kBytes);
  ASSERT_NE(first, 0u);
  rdmalloc_reg* held = get(block, kBytes);
  for (int round = 0; round < 5; ++round) {
    pid_t child = fork();
    if (child == 0) {
      memset(block, 'c', kBytes);
      rdmalloc_reg* reg = nullptr;
      bool is_empty =
          rdmalloc_reg_get(domain, block, kBytes, RDMALLOC_ACCESS_LOCAL, &reg) == -ECHILD;
      rdmalloc_reg_put(held);  // the parent's: does nothing
      rdmalloc_free(block);
      _exit(is_empty && rdmalloc_domain_close(domain) == 0 ? 0 : 1);
    }
    memset(block, 2 + round, kBytes);
    EXPECT_EQ(transfer(block, kBytes), first);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(transfer(block, kBytes), first);
  }
  EXPECT_EQ(counters().in_use, 1u);
  rdmalloc_reg_put(held);
  rdmalloc_free(block);
}

}  // namespace
