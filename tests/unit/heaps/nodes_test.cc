// Heaps with a NUMA node of their own. Machines with one node have number 0. Seen to fail: without
// the call of mbind, with the policy left at the end, and with a refused heap's memory kept.
#include <linux/mempolicy.h>
#include <rdmalloc/regcache.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "alloc/os/fault.h"
#include "tests/support/capture.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
#include "tests/unit/heaps/fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::kKiB;
using rdmalloc_test::kMiB;

int policy_of(const void* address) {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, address, MPOL_F_ADDR) == 0 ? mode : -errno;
}
int node_of(const void* address) {
  int node = -1;
  return syscall(SYS_get_mempolicy, &node, nullptr, 0, address, MPOL_F_ADDR | MPOL_F_NODE) == 0
             ? node
             : -errno;
}

class HeapNodes : public testing::Test {
 protected:
  void SetUp() override {
    int here = 0;
    if (policy_of(&here) < 0) GTEST_SKIP() << "SKIP: no NUMA policies here: " << policy_of(&here);
  }
  rdmalloc_heap* make(unsigned node, size_t budget_bytes) {
    rdmalloc_heap_attr attr = rdmalloc_test::heap_attr(budget_bytes);
    attr.numa_node = RDMALLOC_NODE(node);
    rdmalloc_heap* heap = nullptr;
    last_error = rdmalloc_heap_create(&attr, &heap);
    return heap;
  }
  int last_error = 0;
};

TEST_F(HeapNodes, pages_are_the_nodes_and_no_policy_is_left) {
  // Pages that are there already are moved.
  void* before = rdmalloc_malloc(8 * kMiB);
  memset(before, 1, 8 * kMiB);
  rdmalloc_free(before);
  rdmalloc_heap* heap = make(0, 8 * kMiB);
  ASSERT_EQ(last_error, 0);
  std::vector<void*> blocks;
  while (void* block = rdmalloc_heap_malloc(heap, 500 * kKiB)) {
    EXPECT_EQ(policy_of(block), MPOL_BIND);
    EXPECT_EQ(node_of(block), 0);
    blocks.push_back(block);
  }
  EXPECT_EQ(blocks.size(), 16u);
  EXPECT_EQ(counter("stats.heap_region_bytes"), 8 * kMiB);
  EXPECT_EQ(counter("stats.registered_heaps"), 0u);
  ASSERT_EQ(rdmalloc_heap_grow(heap, kMiB), 0);
  void* more = rdmalloc_heap_malloc(heap, kMiB);
  EXPECT_EQ(policy_of(more), MPOL_BIND);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  for (void* block : blocks) EXPECT_EQ(policy_of(block), MPOL_DEFAULT);
  EXPECT_EQ(policy_of(more), MPOL_DEFAULT);
}

// A checkpoint's restore brings bytes back and no policy, which is what mbind does here. Seen to
// fail without heaps_bind_again().
TEST_F(HeapNodes, a_resume_binds_its_pages_again) {
  rdmalloc_heap* heap = make(0, 8 * kMiB);
  ASSERT_EQ(last_error, 0);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 3 * kMiB));
  auto* ordinary = static_cast<char*>(rdmalloc_malloc(8 * kMiB));
  memset(block, 7, 3 * kMiB);
  auto restore = [&] {
    EXPECT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(syscall(SYS_mbind, block, 3 * kMiB, MPOL_DEFAULT, nullptr, 0, 0), 0);
  };
  restore();
  EXPECT_EQ(policy_of(block), MPOL_DEFAULT);
  EXPECT_EQ(rdmalloc_resume(), 0);
  EXPECT_EQ(policy_of(block), MPOL_BIND);
  EXPECT_EQ(policy_of(block + 3 * kMiB - 1), MPOL_BIND);
  EXPECT_EQ(policy_of(ordinary), MPOL_DEFAULT);
  // On another machine, with other nodes, it goes on without.
  restore();
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kBindNode, 1);
  rdmalloc_test::Capture capture;
  EXPECT_EQ(rdmalloc_resume(), 0);
  std::string said = capture.end();
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kBindNode, 0);
  EXPECT_NE(said.find("NUMA node 0"), std::string::npos) << said;
  EXPECT_EQ(policy_of(block), MPOL_DEFAULT);
  for (size_t i = 0; i < 3 * kMiB; ++i) ASSERT_EQ(block[i], 7) << i;
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  rdmalloc_free(ordinary);
}

TEST_F(HeapNodes, a_node_that_is_not_there_is_refused_and_said_so) {
  uint64_t used = counter("stats.used_bytes");
  rdmalloc_test::Capture capture;
  EXPECT_EQ(make(900, 8 * kMiB), nullptr);
  std::string said = capture.end();
  EXPECT_EQ(last_error, -EINVAL);
  EXPECT_NE(said.find("NUMA node"), std::string::npos) << said;
  make(5000, 8 * kMiB);
  EXPECT_EQ(last_error, -EINVAL);
  make(0, 0);
  EXPECT_EQ(last_error, -EINVAL) << "no budget";
  EXPECT_EQ(counter("stats.used_bytes"), used);
  EXPECT_EQ(counter("stats.heaps"), 0u);
}

}  // namespace
