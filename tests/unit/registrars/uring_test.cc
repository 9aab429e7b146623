// The io_uring registrar: real pins, counted by the kernel.
#include <gmock/gmock.h>
#include <liburing.h>
#include <rdmalloc/registrar_uring.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/capture.h"
#include "tests/support/first_test.h"
#include "tests/support/heap_attr.h"
#include "tests/support/huge_pool.h"
#include "tests/support/kernel_has.h"
#include "tests/unit/registrars/support.h"

namespace {

constexpr std::size_t kMiB = 1 << 20;

// A domain on the program's own ring.
rdmalloc_uring_attr on_ring(io_uring& ring) {
  return {sizeof(rdmalloc_uring_attr), &ring, 0, 0};
}

class Uring : public testing::Test {
 protected:
  void SetUp() override {
    if (int error = rdmalloc_test::io_uring_error())
      GTEST_SKIP() << "SKIP: no io_uring here: " << strerror(error);
    ASSERT_EQ(rdmalloc_domain_open_uring(nullptr, nullptr, &domain, &uring), 0);
  }
  void TearDown() override { EXPECT_TRUE(domain == nullptr || rdmalloc_domain_close(domain) == 0); }
  // Writes `length` bytes of a registered block to a file of memory and reads them back.
  bool write_fixed_sends(char* block, std::size_t length, unsigned index) {
    int file = memfd_create("uring_test", MFD_CLOEXEC);
    io_uring_sqe* sqe = io_uring_get_sqe(rdmalloc_uring_ring(uring));
    io_uring_prep_write_fixed(sqe, file, block, static_cast<unsigned>(length), 0,
                              static_cast<int>(index));
    sqe->user_data = 7;
    io_uring_submit(rdmalloc_uring_ring(uring));
    io_uring_cqe done = {};
    bool is_right = rdmalloc_uring_reap(uring, &done, 1, true) == 1 && done.user_data == 7 &&
                    done.res == static_cast<int>(length);
    std::string back(length, 0);
    bool is_read = pread(file, back.data(), length, 0) == static_cast<ssize_t>(length);
    close(file);
    return is_right && is_read && memcmp(back.data(), block, length) == 0;
  }
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
};

TEST_F(Uring, a_registered_block_is_a_fixed_buffer_with_pinned_pages) {
  long before = status_kb("VmPin");
  char* block = static_cast<char*>(rdmalloc_malloc(4 * kMiB));
  memset(block, 42, 4 * kMiB);
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain, block, 4 * kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_GE(status_kb("VmPin") - before, 4096);
  EXPECT_TRUE(write_fixed_sends(block + 100, 1000, static_cast<unsigned>(key.lkey)));
  rdmalloc_free(block);
  EXPECT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(status_kb("VmPin"), before) << "still pinned after the purge";
}

// Registered for real from its making to its end, and no other call for the ring in between.
// Seen to fail: with a heap that gives its spans to the page heap.
TEST_F(Uring, I13_a_registered_heap_is_pinned_whole_its_blocks_are_fixed) {
  if (rdmalloc_test::is_run_apart()) return;
  long before = status_kb("VmPin");
  rdmalloc_heap_attr attr = rdmalloc_test::registered_heap_attr(&domain, 16 * kMiB);
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  EXPECT_EQ(status_kb("VmPin") - before, 16 * 1024);
  for (int round = 0; round < 50; ++round) {
    std::vector<char*> blocks;
    for (std::size_t bytes : {std::size_t{100}, std::size_t{5000}, 100 * kMiB / 1024, 3 * kMiB}) {
      auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, bytes));
      ASSERT_NE(block, nullptr);
      memset(block, round + 1, bytes);
      rdmalloc_key key;
      ASSERT_EQ(rdmalloc_heap_key(heap, 0, block, bytes, &key), 0);
      EXPECT_TRUE(write_fixed_sends(block, bytes, static_cast<unsigned>(key.lkey)));
      blocks.push_back(block);
    }
    for (char* block : blocks) rdmalloc_free(block);
    rdmalloc_purge(0);
  }
  EXPECT_EQ(counters_of(domain).registrations, 1u);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(status_kb("VmPin"), before) << "still pinned after the end of the heap";
}

// Really pinned, on pages of the kernel's pool that the parent and its child write after a fork.
// Seen to fail: with the pages put there after the heap was registered.
TEST_F(Uring, I11_a_heap_of_huge_pages_sends_what_is_there_after_a_fork) {
  if (rdmalloc_test::is_run_apart()) return;
  rdmalloc_test::HugePool pool(2 * kMiB);
  // The kernel copies pinned pages when the child is made.
  if (!pool.make_free(16)) GTEST_SKIP() << pool.why_not;
  long before = status_kb("VmPin");
  rdmalloc_heap_attr attr =
      rdmalloc_test::registered_heap_attr(&domain, 8 * kMiB, 0, RDMALLOC_PAGE_2M);
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  EXPECT_EQ(status_kb("VmPin") - before, 8 * 1024);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 5 * kMiB));
  EXPECT_EQ(rdmalloc_test::smaps_kib(block, "KernelPageSize"), 2048);
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_heap_key(heap, 0, block, 5 * kMiB, &key), 0);
  for (int round = 1; round < 4; ++round) {
    memset(block, round, 5 * kMiB);
    EXPECT_TRUE(write_fixed_sends(block, 5 * kMiB, static_cast<unsigned>(key.lkey)));
    pid_t child = fork();
    if (child == 0) {
      memset(block, 99, 5 * kMiB);
      _exit(0);
    }
    memset(block, 10 + round, 5 * kMiB);
    EXPECT_TRUE(write_fixed_sends(block, 5 * kMiB, static_cast<unsigned>(key.lkey)));
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_EQ(status_kb("VmPin"), before);
  EXPECT_EQ(pool.free(), 16u);
}

// Pinned as the kernel counts it, and right for a transfer from every piece. Fails when
// register_next() leaves a piece out.
TEST_F(Uring, a_prefaulted_block_is_pinned_whole_and_each_piece_sends) {
  if (rdmalloc_test::is_run_apart()) return;
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.largest = 4 * kMiB;
  ASSERT_EQ(rdmalloc_domain_close(domain), 0);
  ASSERT_EQ(rdmalloc_domain_open_uring(nullptr, &attr, &domain, &uring), 0);
  long before = status_kb("VmPin");
  char* block = static_cast<char*>(rdmalloc_malloc(32 * kMiB));
  iovec range = {block, 32 * kMiB};
  ASSERT_EQ(rdmalloc_reg_prefault(&domain, 1, &range, 1, 4, nullptr, nullptr), 0);
  EXPECT_EQ(status_kb("VmPin") - before, 32 * 1024);
  EXPECT_EQ(counters_of(domain).registrations, 8u);
  for (std::size_t at = 0; at < 32 * kMiB; at += 4 * kMiB) {
    memset(block + at, static_cast<int>(at / kMiB), kMiB);
    rdmalloc_key key;
    ASSERT_EQ(rdmalloc_reg_key(domain, block + at, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
    EXPECT_TRUE(write_fixed_sends(block + at, 1000, static_cast<unsigned>(key.lkey)));
  }
  EXPECT_EQ(counters_of(domain).registrations, 8u);
  rdmalloc_free(block);
  EXPECT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(status_kb("VmPin"), before);
}

// Fails when a removal's search for its tag throws other completions away.
TEST_F(Uring, completions_that_a_removal_comes_across_reach_their_owner) {
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  io_uring* ring = rdmalloc_uring_ring(uring);
  for (unsigned i = 0; i < 100; ++i) {
    io_uring_sqe* sqe = io_uring_get_sqe(ring);
    io_uring_prep_nop(sqe);
    sqe->user_data = 1000 + i;
  }
  ASSERT_EQ(io_uring_submit(ring), 100);
  rdmalloc_free(block);
  std::thread([] { rdmalloc_purge(0); }).join();
  io_uring_cqe done[100];
  unsigned seen = 0;
  while (seen < 100) {
    int got = rdmalloc_uring_reap(uring, done, 7, true);
    ASSERT_GT(got, 0);
    for (int i = 0; i < got; ++i) ASSERT_EQ(done[i].user_data, 1000 + seen++);
  }
  EXPECT_EQ(rdmalloc_uring_reap(uring, done, 100, false), 0);
  EXPECT_EQ(rdmalloc_uring_reap(uring, nullptr, 1, false), -EINVAL);
  EXPECT_EQ(rdmalloc_uring_reap(nullptr, done, 1, false), -EINVAL);
  EXPECT_EQ(rdmalloc_uring_ring(nullptr), nullptr);
}

// Seen to fail when each number with the upper bits of a tag was taken for one: the table was
// written beyond its end, and the completion never came.
TEST_F(Uring, what_looks_like_a_tag_of_no_buffer_is_the_users) {
  constexpr std::uint64_t kLikeTag = std::uint64_t{0x7264} << 48;
  const std::uint64_t users[] = {kLikeTag | RDMALLOC_URING_MOST_BUFFERS,
                                 kLikeTag | ((std::uint64_t{1} << 48) - 1)};
  io_uring* ring = rdmalloc_uring_ring(uring);
  for (std::uint64_t user_data : users) {
    io_uring_sqe* sqe = io_uring_get_sqe(ring);
    io_uring_prep_nop(sqe);
    sqe->user_data = user_data;
    ASSERT_EQ(io_uring_submit(ring), 1);
    io_uring_cqe done = {};
    ASSERT_EQ(rdmalloc_uring_reap(uring, &done, 1, false), 1);
    EXPECT_EQ(done.user_data, user_data);
  }
}

// Fails when a buffer's keys are those of another piece, or destroy leaves a registration.
TEST_F(Uring, a_pools_buffers_are_fixed_and_pinned_while_it_lives) {
  long before = status_kb("VmPin");
  rdmalloc_pool_attr attr = {};
  attr.size = sizeof attr;
  attr.small_count = 64;
  attr.large_count = 8;
  rdmalloc_pool* pool = nullptr;
  ASSERT_EQ(rdmalloc_pool_create(&domain, 1, &attr, &pool), 0);
  EXPECT_GE(status_kb("VmPin") - before, 64 * 8 + 8 * 132);
  std::vector<rdmalloc_buffer*> out;
  rdmalloc_buffer* buffer = nullptr;
  for (std::size_t bytes : {8192, 8193})
    while (rdmalloc_pool_get(pool, bytes, &buffer) == 0) out.push_back(buffer);
  ASSERT_EQ(out.size(), 72u);
  for (std::size_t i = 0; i < out.size(); ++i)
    memset(out[i]->addr, static_cast<int>('0' + i), out[i]->length);
  for (rdmalloc_buffer* one : out)
    EXPECT_TRUE(write_fixed_sends(static_cast<char*>(one->addr), one->length,
                                  static_cast<unsigned>(one->keys->lkey)));
  EXPECT_EQ(rdmalloc_pool_destroy(pool), -EBUSY);
  for (rdmalloc_buffer* one : out) EXPECT_EQ(rdmalloc_pool_put(pool, one), 0);
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
  rdmalloc_purge(0);
  EXPECT_EQ(status_kb("VmPin"), before);
}

// What the kernel pinned is what the CPU sees, after the pages at an address were replaced: per use
// without a word, adopted when its owner keeps its own. The control: an owner that does not sends
// the old bytes, or, in a checked build, is found out (page_frame_check_test). Fails when disown
// leaves the registration, or foreign memory is cached unasked.
TEST_F(Uring, foreign_memory_mapped_anew_at_its_address_is_registered_anew) {
  constexpr std::size_t kBytes = 65536;
  enum class Owner { kSaysNothing, kVouches, kBreaksHisWord };
  auto map_anew = [](void* at) {
    if (at != nullptr) munmap(at, kBytes);
    int fixed = at != nullptr ? MAP_FIXED_NOREPLACE : 0;
    return static_cast<char*>(
        mmap(at, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0));
  };
  for (Owner owner : {Owner::kSaysNothing, Owner::kVouches, Owner::kBreaksHisWord}) {
#if RDMALLOC_CHECKED
    if (owner == Owner::kBreaksHisWord) continue;
#endif
    char* block = map_anew(nullptr);
    ASSERT_NE(block, MAP_FAILED);
    if (owner != Owner::kSaysNothing) {
      ASSERT_EQ(rdmalloc_adopt(block, kBytes), 0);
    }
    int right = 0;
    for (int round = 0; round < 10; ++round) {
      memset(block, 'a' + round, kBytes);
      rdmalloc_reg* reg = nullptr;
      ASSERT_EQ(rdmalloc_reg_get(domain, block, kBytes, RDMALLOC_ACCESS_LOCAL, &reg), 0);
      rdmalloc_key key;
      rdmalloc_reg_key_of(reg, &key);
      right += write_fixed_sends(block, kBytes, static_cast<unsigned>(key.lkey));
      rdmalloc_reg_put(reg);
      if (owner == Owner::kVouches) {
        ASSERT_EQ(rdmalloc_disown(block, kBytes), 0);
      }
      ASSERT_EQ(map_anew(block), block);
      if (owner == Owner::kVouches) {
        ASSERT_EQ(rdmalloc_adopt(block, kBytes), 0);
      }
    }
    EXPECT_EQ(right, owner == Owner::kBreaksHisWord ? 1 : 10);
    rdmalloc_disown(block, kBytes);
    munmap(block, kBytes);
  }
}

TEST(UringBadUse, rings_that_cannot_work_are_refused) {
  rdmalloc_uring_attr attr = {sizeof attr, nullptr, 0, 16385};
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  EXPECT_EQ(rdmalloc_domain_open_uring(&attr, nullptr, &domain, &uring), -EINVAL);
  // The last is IORING_SETUP_CQE_MIXED. Seen to fail: half of each long completion was lost.
  for (unsigned flags : {IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_CQE32, 1u << 18}) {
    io_uring ring;
    if (int error = io_uring_queue_init(8, &ring, flags)) {
      printf("SKIP: no ring of flags 0x%x here: %s\n", flags, strerror(-error));
      continue;
    }
    attr = on_ring(ring);
    EXPECT_EQ(rdmalloc_domain_open_uring(&attr, nullptr, &domain, &uring), -ENOTSUP) << flags;
    io_uring_queue_exit(&ring);
  }
  if (attr.ring == nullptr) GTEST_SKIP() << "SKIP: none of them";
}

TEST(UringBadUse, a_callers_ring_stays_the_callers) {
  io_uring ring;
  int made = io_uring_queue_init(8, &ring, 0);
  if (made != 0) GTEST_SKIP() << "SKIP: no io_uring here: " << strerror(-made);
  rdmalloc_uring_attr attr = on_ring(ring);
  attr.buffers = 2;
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_uring(&attr, nullptr, &domain, &uring), 0);
  EXPECT_EQ(rdmalloc_uring_ring(uring), &ring);
  // Two slots: the third block takes the place of the first, the least recently put.
  char* blocks[3];
  for (char*& block : blocks) {
    block = static_cast<char*>(rdmalloc_malloc(kMiB));
    rdmalloc_reg* reg = nullptr;
    ASSERT_EQ(rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg), 0);
    rdmalloc_reg_put(reg);
  }
  EXPECT_EQ(counters_of(domain).evictions, 1u);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  for (char* block : blocks) rdmalloc_free(block);
  EXPECT_EQ(io_uring_register_buffers_sparse(&ring, 4), 0) << "the table was left in the ring";
  io_uring_queue_exit(&ring);
}

// The kernel counts a huge page whole, and the ring itself, so nothing here is tight. Fails when
// VmPin is not what is looked at, or idle registrations are not evicted for it.
TEST(UringLimits, I12_a_limits_room_is_known_before_the_kernel_is_asked) {
  if (rdmalloc_test::is_run_apart()) return;
  int result = unprivileged_with_memlock(7 << 20, [] {
    rdmalloc_uring_attr attr = {};
    attr.size = sizeof attr;
    attr.entries = 8;
    rdmalloc_domain* domain = nullptr;
    rdmalloc_uring* uring = nullptr;
    if (rdmalloc_test::io_uring_error() != 0) return 77;
    if (rdmalloc_domain_open_uring(&attr, nullptr, &domain, &uring) != 0) return 8;
    if (counters_of(domain).memlock_limit_bytes != 7 << 20) return 1;
    auto get = [domain](std::size_t bytes, int* error) {
      void* block = rdmalloc_malloc(bytes);
      memset(block, 1, bytes);
      rdmalloc_reg* reg = nullptr;
      *error = rdmalloc_reg_get(domain, block, bytes, RDMALLOC_ACCESS_LOCAL, &reg);
      return reg;
    };
    int error = 0;
    rdmalloc_reg* first = get(2 * kMiB, &error);
    for (int i = 0; i < 2 && error == 0; ++i) rdmalloc_reg_put(get(2 * kMiB, &error));
    if (error != 0) return 2;
    auto before = counters_of(domain);
    if (before.memlock_left_bytes > kMiB || before.evictions != 0) return 3;
    // Idle makes room.
    rdmalloc_reg* second = get(2 * kMiB, &error);
    auto after = counters_of(domain);
    if (error != 0 || after.evictions == 0 || after.refusals != before.refusals) return 4;
    // Held does not, and the kernel isn't asked.
    if (get(4 * kMiB, &error) != nullptr || error != -ENOMEM) return 5;
    after = counters_of(domain);
    if (after.refusals != before.refusals || after.memlock_refusals != 1) return 6;
    rdmalloc_reg_put(first);
    rdmalloc_reg_put(second);
    return rdmalloc_domain_close(domain) == 0 ? 0 : 7;
  });
  if (result == 77) GTEST_SKIP() << "SKIP: no io_uring here under a limit of 7 MiB";
  EXPECT_EQ(result, 0);
}

TEST(UringLimits, I12_without_locked_memory_nothing_is_lost) {
  int result = unprivileged_with_memlock(0, [] {
    rdmalloc_domain* domain = nullptr;
    rdmalloc_uring* uring = nullptr;
    int error = rdmalloc_domain_open_uring(nullptr, nullptr, &domain, &uring);
    if (error != 0) return error == -ENOMEM || error == -EPERM || error == -ENOSYS ? 0 : 1;
    char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
    rdmalloc_reg* reg = nullptr;
    error = rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg);
    if (error != -ENOMEM && error != -EPERM) return 2;
    memset(block, 1, kMiB);
    rdmalloc_free(block);
    return rdmalloc_domain_close(domain) == 0 ? 0 : 3;
  });
  EXPECT_EQ(result, 0);
}

// How many descriptors of this kind are open.
int open_rings() {
  int count = 0;
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) == "anon_inode:[io_uring]") ++count;
  }
  return count;
}

TEST_F(Uring, our_own_ring_closes_in_a_quiesce_and_works_after_the_resume) {
  auto* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  memset(block, 3, kMiB);
  rdmalloc_key key;
  ASSERT_EQ(rdmalloc_reg_key(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(write_fixed_sends(block, 100, static_cast<unsigned>(key.lkey)));
    // What is done is kept for a program that takes it later.
    io_uring_prep_nop(io_uring_get_sqe(rdmalloc_uring_ring(uring)));
    io_uring_submit(rdmalloc_uring_ring(uring));
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(open_rings(), 0);
    EXPECT_EQ(status_kb("VmPin"), 0);
    io_uring_cqe done = {};
    EXPECT_EQ(rdmalloc_uring_reap(uring, &done, 1, true), 1);
    EXPECT_EQ(rdmalloc_uring_reap(uring, &done, 1, true), -EAGAIN);
    ASSERT_EQ(rdmalloc_resume(), 0);
    EXPECT_EQ(open_rings(), 1);
    memset(block, round, kMiB);
    ASSERT_EQ(rdmalloc_reg_key(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  }
  // Also when it is closed in between.
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  domain = nullptr;
  EXPECT_EQ(rdmalloc_resume(), 0);
  rdmalloc_free(block);
}

// A ring of the user's, which the program closes when it is told, or not.
TEST(UringQuiesce, a_ring_of_the_users_is_theirs_to_close_or_is_named) {
  struct Mine {
    io_uring ring = {};
    bool is_closed_when_told = false;
    int told = 0;
  } mine;
  if (io_uring_queue_init(8, &mine.ring, 0) != 0) GTEST_SKIP() << "SKIP: no io_uring here";
  rdmalloc_uring_attr attr = on_ring(mine.ring);
  rdmalloc_domain_attr of_domain = {};
  of_domain.size = sizeof of_domain;
  of_domain.event_arg = &mine;
  of_domain.event = [](rdmalloc_domain*, rdmalloc_domain_event event, void* arg) {
    auto& my = *static_cast<Mine*>(arg);
    ++my.told;
    if (!my.is_closed_when_told) return 0;
    if (event == RDMALLOC_DOMAIN_CLOSE) io_uring_queue_exit(&my.ring);
    return event == RDMALLOC_DOMAIN_OPEN ? io_uring_queue_init(8, &my.ring, 0) : 0;
  };
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_uring(&attr, &of_domain, &domain, &uring), 0);
  auto* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_key key = {};
  ASSERT_EQ(rdmalloc_reg_key(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  rdmalloc_test::Capture capture;
  EXPECT_EQ(rdmalloc_quiesce(-1), -EBUSY);
  EXPECT_THAT(capture.end(), testing::HasSubstr("event()): " + std::to_string(mine.ring.ring_fd) +
                                                " anon_inode:[io_uring]\n"));
  EXPECT_EQ(mine.told, 4);
  // Everything works again, on the same ring.
  ASSERT_EQ(rdmalloc_reg_key(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  mine.is_closed_when_told = true;
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(open_rings(), 0);
  ASSERT_EQ(rdmalloc_resume(), 0);
  ASSERT_EQ(rdmalloc_reg_key(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &key), 0);
  EXPECT_GT(status_kb("VmPin"), 0);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  io_uring_queue_exit(&mine.ring);
  rdmalloc_free(block);
}

// A buffer that could not be removed is in the table still, where the program has not closed its
// ring. Seen to fail when such a domain said REOPEN: its pages were no longer kept. And when a
// resume freed all slots: the next registration took its place in the table.
TEST(UringQuiesce, what_could_not_be_removed_from_a_ring_of_the_users_stays) {
  namespace os = rdmalloc::os;
  io_uring ring = {};
  if (io_uring_queue_init(8, &ring, 0) != 0) GTEST_SKIP() << "SKIP: no io_uring here";
  rdmalloc_uring_attr attr = on_ring(ring);
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_uring(&attr, nullptr, &domain, &uring), 0);
  auto* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  auto* other = static_cast<char*>(rdmalloc_malloc(kMiB));
  auto slot_of = [domain](char* at) {
    rdmalloc_reg* reg = nullptr;
    EXPECT_EQ(rdmalloc_reg_get(domain, at, kMiB, RDMALLOC_ACCESS_LOCAL, &reg), 0);
    rdmalloc_key key = {};
    rdmalloc_reg_key_of(reg, &key);
    rdmalloc_reg_put(reg);
    return key.lkey;
  };
  std::uint64_t slot = slot_of(block);
  rdmalloc_test::Capture capture;
  os::arm_fault(os::Site::kUringRemove, 1);
  EXPECT_EQ(rdmalloc_domain_flush(domain), 0);
  EXPECT_EQ(counters_of(domain).quarantined, 1u);
  EXPECT_EQ(rdmalloc_quiesce(-1), -EBUSY) << "the ring is open";
  capture.end();
  EXPECT_EQ(counters_of(domain).live_count, 1u);
  EXPECT_NE(slot_of(other), slot);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  io_uring_queue_exit(&ring);
  rdmalloc_free(other);  // and not what is in quarantine: the next test's block would lie there
}

// It has gone with a ring that the program has closed and made anew. Seen to fail: its range stayed
// in quarantine for ever.
TEST(UringQuiesce, what_could_not_be_removed_ends_with_a_ring_of_the_users) {
  namespace os = rdmalloc::os;
  io_uring ring = {};
  if (io_uring_queue_init(8, &ring, 0) != 0) GTEST_SKIP() << "SKIP: no io_uring here";
  rdmalloc_uring_attr attr = on_ring(ring);
  rdmalloc_domain_attr of_domain = {};
  of_domain.size = sizeof of_domain;
  of_domain.event_arg = &ring;
  of_domain.event = [](rdmalloc_domain*, rdmalloc_domain_event event, void* arg) {
    auto* its = static_cast<io_uring*>(arg);
    if (event == RDMALLOC_DOMAIN_CLOSE) io_uring_queue_exit(its);
    return event == RDMALLOC_DOMAIN_OPEN ? io_uring_queue_init(8, its, 0) : 0;
  };
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_uring(&attr, &of_domain, &domain, &uring), 0);
  auto* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_reg* reg = nullptr;
  ASSERT_EQ(rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg), 0);
  rdmalloc_reg_put(reg);
  rdmalloc_test::Capture capture;
  os::arm_fault(os::Site::kUringRemove, 1);
  EXPECT_EQ(rdmalloc_domain_flush(domain), 0);
  capture.end();
  ASSERT_EQ(counters_of(domain).live_count, 1u);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  ASSERT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(counters_of(domain).live_count, 0u);
  EXPECT_EQ(counters_of(domain).is_lost, 0u);
  ASSERT_EQ(rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg), 0);
  rdmalloc_reg_put(reg);
  memset(block, 42, kMiB);
  rdmalloc_free(block);
  EXPECT_GT(rdmalloc_purge(0), 0);
  unsigned char is_resident[1] = {};
  ASSERT_EQ(mincore(block, 4096, is_resident), 0);
  EXPECT_EQ(is_resident[0] & 1, 0) << "kept";
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  io_uring_queue_exit(&ring);
}

// Without the wait for sleepers the ring is unmapped under the one that looks at it.
TEST_F(Uring, a_waiter_for_completions_meets_a_quiesce_unharmed) {
  std::atomic<bool> stops{false};
  std::atomic<int> refused{0};
  std::thread waiter([&] {
    while (!stops) {
      io_uring_cqe done = {};
      if (rdmalloc_uring_reap(uring, &done, 1, true) == -EAGAIN) ++refused;
    }
  });
  while (refused == 0) {
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    std::this_thread::yield();
    ASSERT_EQ(rdmalloc_resume(), 0);
  }
  stops = true;
  io_uring_prep_nop(io_uring_get_sqe(rdmalloc_uring_ring(uring)));
  io_uring_submit(rdmalloc_uring_ring(uring));
  waiter.join();
}

// The kernel tells of a buffer's end once the last request on it is done; where that can't be
// waited for it is looked for. Fails when sleep_a_turn() returns at once: 5 s of turns are over
// in no time, and the buffer is quarantined.
TEST_F(Uring, a_removal_that_can_not_be_waited_for_is_looked_for) {
  namespace os = rdmalloc::os;
  char* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_reg* reg = nullptr;
  ASSERT_EQ(rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg), 0);
  rdmalloc_key key;
  rdmalloc_reg_key_of(reg, &key);
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  io_uring* ring = rdmalloc_uring_ring(uring);
  io_uring_sqe* sqe = io_uring_get_sqe(ring);
  io_uring_prep_read_fixed(sqe, ends[0], block, 1, 0, static_cast<int>(key.lkey));
  sqe->user_data = 7;
  ASSERT_EQ(io_uring_submit(ring), 1);
  rdmalloc_reg_put(reg);
  std::uint64_t fired = os::faults_fired();
  os::arm_fault(os::Site::kUringWait, 1);
  std::thread flush([&] { EXPECT_EQ(rdmalloc_domain_flush(domain), 1); });
  while (os::faults_fired() == fired) std::this_thread::yield();
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  flush.join();
  EXPECT_EQ(counters_of(domain).quarantined, 0u);
  io_uring_cqe done = {};
  EXPECT_EQ(rdmalloc_uring_reap(uring, &done, 1, true), 1);
  EXPECT_EQ(done.user_data, 7u);
  for (int end : ends) close(end);
  rdmalloc_free(block);
}

}  // namespace
