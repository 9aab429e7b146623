// SPDX-License-Identifier: BSD-3-Clause
//
// A machine of two nodes, of which the first thread learns only once it has many buffers: what it
// does from then on.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "alloc/cache/thread_cache.h"
#include "alloc/os/topology.h"
#include "tests/support/process.h"

namespace {

constexpr size_t kBytes = rdmalloc::kSliceBytes;

std::vector<void*> allocate(size_t count) {
  std::vector<void*> blocks(count);
  for (void*& block : blocks) memset(block = rdmalloc_malloc(kBytes), 1, kBytes);
  return blocks;
}
void release(const std::vector<void*>& blocks) {
  for (void* block : blocks) rdmalloc_free(block);
}

bool run_on(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

// Seen to fail where the thread goes on deferring its buffers: one of eight.
TEST(LateNodes, a_far_buffer_that_the_thread_freed_last_is_not_given_to_it) {
  if (!run_on(0)) GTEST_SKIP() << "SKIP: no processor 0 here";
  for (int round = 0; round < 4; round++) release(allocate(12));
  ASSERT_NE(rdmalloc::detail::this_cache->deferred, nullptr);
  ASSERT_EQ(rdmalloc_init(), 0);
  ASSERT_EQ(rdmalloc::os::node_count(), 2u);
  std::vector<void*> far;
  bool is_far = false;
  std::thread([&] {
    is_far = run_on(1);
    far = allocate(8);
  }).join();
  if (!is_far) GTEST_SKIP() << "SKIP: no processor 1 here";
  std::set<void*> theirs(far.begin(), far.end());
  release(far);
  std::vector<void*> blocks = allocate(40);
  size_t found = 0;
  for (void* block : blocks) found += theirs.count(block);
  EXPECT_EQ(found, 0u);
  release(blocks);
}

constexpr std::string_view kFolder = "/tmp/late_nodes.";

// Two nodes of one processor each, as the kernel would tell.
std::string two_nodes() {
  std::string root = std::string(kFolder) + "XXXXXX";
  if (mkdtemp(root.data()) == nullptr) {
    perror(root.c_str());
    exit(1);
  }
  for (auto [path, words] : {std::pair{"cpu/online", "0-1"},
                             {"node/has_cpu", "0-1"},
                             {"node/node0/cpulist", "0"},
                             {"node/node1/cpulist", "1"}}) {
    std::filesystem::path file = root + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << words << "\n";
  }
  return root;
}

}  // namespace

int main(int argc, char** argv) {
  const char* told = getenv("RDMALLOC_TOPOLOGY");
  // Of this program before its exec(), which removes it; or a folder of the caller's, which stays.
  bool is_ours = told != nullptr && std::string_view(told).substr(0, kFolder.size()) == kFolder;
  std::string root = is_ours ? told : two_nodes();
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=" + root, "RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  int result = RUN_ALL_TESTS();
  std::filesystem::remove_all(root);
  return result;
}
