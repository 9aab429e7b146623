// SPDX-License-Identifier: BSD-3-Clause
//
// I11: children that are forked while another thread takes spans from the thread that forks
// (alloc/cache/reclaim.h). Of small blocks: reclaim_test.cc.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <vector>

#include "alloc/cache/loans.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/thread_cache.h"
#include "tests/support/by_steps.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/support/worker.h"

namespace {

// Goes by steps, and forks.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

using namespace rdmalloc_test::by_steps;
using rdmalloc_test::Worker;

constexpr size_t kBytes = 256 << 10;

const rdmalloc::ThreadCache& mine() {
  return *rdmalloc::detail::this_cache;
}

// Another thread takes what this one has, and stands still at each so many steps. There `look` says
// whether to fork, and ends where it is false; in the child `end` is its exit status.
int fork_beside_a_taker(int between, const std::function<bool(bool)>& look, int (*end)()) {
  for (int round = 0; round < 20; round++) {
    std::vector<void*> some = rdmalloc_test::allocate(16, kBytes);
    rdmalloc_test::release(some);
  }
  prepare([](int) {});
  steps_between = between;
  std::atomic<bool> has_taken{false};
  int forks = 0;
  Worker taker;
  taker.begin([&] {
    go_by_steps(0, [&] {
      rdmalloc::caches_reclaim(rdmalloc::ReclaimFrom::kAll, rdmalloc::kLookMs);
      has_taken = true;
    });
  });
  for (bool goes_on = true; goes_on && !testing::Test::HasFailure(); go_on()) {
    while (where == kBefore) {
    }
    goes_on = !has_taken;
    if (!look(has_taken)) continue;
    forks++;
    pid_t child = fork();
    if (child == 0) _exit(end());
    int status = -1;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(child, 30000, &status)) << "fork " << forks;
    EXPECT_EQ(status, 0) << "fork " << forks;
  }
  steps_between = 0;
  may_go_on = true;
  taker.wait();
  return forks;
}

uint64_t live_before;

// A bin has megabytes of them. Seen to fail with a magazine that is given to the slabs as a whole.
TEST(ReclaimFork, I11_a_child_loses_one_span_at_most) {
  rdmalloc_free(rdmalloc_malloc(1000));
  ASSERT_GE(rdmalloc_purge(0), 0);
  live_before = rdmalloc_test::counter("stats.live_bytes");
  int forks = fork_beside_a_taker(
      97, [](bool) { return true; },
      [] {
        if (rdmalloc_purge(0) < 0) return 2;
        return rdmalloc_test::counter("stats.live_bytes") <= live_before + kBytes ? 0 : 3;
      });
  EXPECT_GT(forks, 20);
}

uint64_t share_before;

// Each store of the taker to what this thread has borrowed. Seen to fail with a share that has the
// loan in it: a child keeps what it borrowed as its own.
TEST(ReclaimFork, I11_a_childs_own_share_is_as_before) {
  rdmalloc_free(rdmalloc_malloc(kBytes));
  share_before = mine().span_share;
  int steps_since = 0;
  int forks = fork_beside_a_taker(
      1,
      [&](bool has_taken) {
        bool is_gone = mine().span_loan.bytes == 0;
        return is_gone && !has_taken && ++steps_since < 40;
      },
      [] {
        for (int i = 0; i < 70; i++) rdmalloc_malloc(3000);  // the slow path looks
        bool is_right = mine().span_share == share_before && mine().span_loan.bytes == 0 &&
                        mine().span_bytes <= share_before &&
                        rdmalloc::loans.lent_span_bytes.load() == 0;
        return is_right ? 0 : 1;
      });
  EXPECT_GT(forks, 20);
}

#endif

}  // namespace
