// SPDX-License-Identifier: BSD-3-Clause
//
// I11, store by store. What a child sees of another thread is its stores up to some point of its
// program order: the thread stops at its first store to a page that fork has write-protected
// already (alloc/process/fork.h). Here each such point of a history is tried, instead of waiting
// for luck: every page that rdmalloc writes is read-only, so the other thread stops at each of its
// stores, and a child is forked there, which must find every live block whole and hand none of them
// out again. The store is then let through by one step of the processor with the page writable (the
// trap flag), so this test is for x86-64.
//
// Some of the children do the same again: one of their threads recovers, and at its stores the
// other forks.
//
// The histories, and what each was seen to fail with:
//
//   malloc  pass_on() of thread_cache.cc that gives a magazine away before the class has let go
//   heap    the locks of vanished threads freed before what they guard was made anew; free bits or
//           magazines believed by the child; live bits set outside the lock
//   region  a region's lists as they were; spans on their way that malloc gets
//   shards  the lists of shard 0 alone made anew
//   long    a block that a vanished thread keeps left where it is
//   buffers a free() that enters the deferred block before another one takes its place (0021)
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <rdmalloc/regcache.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "alloc/cache/thread_cache.h"
#include "alloc/pages/page_heap.h"
#include "tests/invariants/domain.h"
#include "tests/invariants/own_memory.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::Metadata;
using rdmalloc_test::Random;

// Which history a process has: each wants settings of its own.
struct Kind {
  const char* name;
  bool in_heap;    // of a heap of the user
  bool in_region;  // which is a registered one
  // The thread moves between the places of a made-up topology, so that shards are made, steal and
  // are repaired. An eighth of its blocks are large, of up to 4 MiB, so that segments come and go.
  int places;
  std::vector<std::string> environment;
  // Long blocks of one length, one after the other, of which both threads keep one.
  bool in_a_row = false;
  // Half of its blocks are buffers, of which it has had so many that they are deferred.
  bool has_buffers = false;
  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
};
const Kind kKinds[] = {
    {"malloc", false, false, 1, {}},
    {"heap", true, false, 1, {}},
    // A domain, or much free memory, starts the purge thread, whose stack would be write-protected
    // with all the rest. Huge pages make children dear.
    {"region", true, true, 1, {"RDMALLOC_PURGE=manual", "RDMALLOC_HUGE=never"}},
    {"shards", false, false, 4, {"RDMALLOC_TOPOLOGY=2x2", "RDMALLOC_HUGE=never"}},
    {"long", false, false, 1, {"RDMALLOC_HUGE=never"}, true},
    {"buffers", false, false, 1, {"RDMALLOC_PURGE=manual", "RDMALLOC_HUGE=never"}, false, true},
};
const Kind* kind_here = nullptr;  // the one of this process

class ForkAtStores : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(, ForkAtStores, ::testing::ValuesIn(kKinds),
                         [](const auto& one) { return one.param.name; });

#if defined(__x86_64__)

constexpr size_t kPage = 4096;
constexpr int64_t kTrapFlag = 0x100;

// Stores of an operation that took the fast path, about; most of a history. Of them a sample is
// tried.
uint64_t fast_stores() {
  if (kind_here->in_a_row || kind_here->has_buffers) return 0;
  return kind_here->in_heap ? 10 : 2;
}

struct Block {
  unsigned char* start = nullptr;
  size_t bytes = 0;
};
constexpr size_t kBlocks = 1200;
// Small ones of three classes, one whose slab holds few, and a large one.
constexpr size_t kSizes[] = {24, 64, 1000, 14000, 300000};
// Of 2, 5, 16 and 46 slices.
constexpr size_t kLarge[] = {70000, 300000, 1000000, 3000000};
// Of a class of its own, which the thread of the history only frees. A magazine holds few as large,
// so that those of one stretch fill several.
constexpr size_t kFreedOnly = 10000;

// Of spans that threads cache.
constexpr size_t kBuffers[] = {60000, 100000, 250000};

enum State : int { kRuns, kStopped, kIdle };

// Between the thread that is stopped and the one that forks. It lies in memory of its own, which is
// never protected.
struct Shared {
  std::atomic<int> state{kIdle};  // release and acquire: all else here goes with it
  std::atomic<int> stopped_thread{0};
  uintptr_t stopped_at = 0;
  bool is_watched = false;  // the thread is inside malloc, free or purge
  uint64_t stores = 0;      // since it went in
  uint64_t stride = 1;      // of its stores, one of so many is tried
  uint64_t offset = 0;      // which one of them
  int64_t steps = 0;        // what it is to do next
  int64_t purge_at = 0;     // when as many are left
  bool is_ending = false;
  rdmalloc_heap* heap = nullptr;  // of a history in a heap
  Block live[kBlocks];            // the one that is on its way is not among them
  std::vector<void*> of_forking_thread;
  const Metadata* metadata = nullptr;
};
Shared* shared = nullptr;
int this_process_thread() {
  return static_cast<int>(syscall(SYS_gettid));
}

// By futex calls of its own: std::atomic's keep their waiters in the program's data, where a store
// stops.
void wait_while(int state) {
  while (shared->state.load(std::memory_order_acquire) == state)
    syscall(SYS_futex, &shared->state, FUTEX_WAIT_PRIVATE, state, nullptr);
}
void set(State state) {
  shared->state.store(state, std::memory_order_release);
  syscall(SYS_futex, &shared->state, FUTEX_WAKE_PRIVATE, 1);
}

void page_rights(uintptr_t address, int rights) {
  mprotect(reinterpret_cast<void*>(address & ~(kPage - 1)), kPage, rights);
}

void on_fault(int, siginfo_t* info, void* context) {
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (shared == nullptr || !shared->metadata->holds(address)) {
    dprintf(2, "process %d: %p touched by the instruction at %llx\n", getpid(), info->si_addr,
            static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    signal(SIGSEGV, SIG_DFL);  // a real one: it comes again
    return;
  }
  page_rights(address, PROT_READ | PROT_WRITE);
  bool is_watched = this_process_thread() == shared->stopped_thread.load() && shared->is_watched;
  if (!is_watched) return;
  shared->stopped_at = address;
  // Of a fast path's stores a sample. So of a purge's and a recovery's, which are hundreds, at
  // another offset each time.
  shared->stores++;
  bool is_sampled = shared->stride > 1 ? (shared->stores + shared->offset) % shared->stride == 0
                                       : shared->stores > fast_stores() || shared->steps % 16 == 0;
  if (is_sampled) {
    set(kStopped);
    wait_while(kStopped);
  }
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= kTrapFlag;
}

// After the one store.
void on_trap(int, siginfo_t*, void* context) {
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  page_rights(shared->stopped_at, PROT_READ);
}

unsigned char mark_of(size_t index) {
  return static_cast<unsigned char>(index * 7 + 1);
}

void fill(const Block& block, unsigned char mark) {
  block.start[0] = block.start[block.bytes / 2] = block.start[block.bytes - 1] = mark;
}
bool is_filled(const Block& block, unsigned char mark) {
  return block.start[0] == mark && block.start[block.bytes / 2] == mark &&
         block.start[block.bytes - 1] == mark;
}

void* allocate(size_t bytes) {
  return kind_here->in_heap ? rdmalloc_heap_malloc(shared->heap, bytes) : rdmalloc_malloc(bytes);
}

// Of a block of many slices, a purge or a recovery one store of `stride` is tried, at another
// offset each time.
void enter(uint64_t stride = 1) {
  shared->stride = stride;
  if (stride > 1) shared->offset++;
  shared->stores = 0;
  shared->is_watched = true;
}
uint64_t stride_of(size_t bytes) {
  return kind_here->places > 1 && bytes >= kLarge[0] ? 3 + bytes / kLarge[0] : 1;
}

// The history of long blocks: of one length for 40 steps, then one of another. A second one comes
// and goes while the first is live, and while it is kept.
void operate_in_a_row() {
  size_t index = shared->steps % 8 == 4 ? 1 : 0;
  Block& block = shared->live[index];
  enter();
  if (block.start != nullptr) {
    void* start = block.start;
    block = {};
    rdmalloc_free(start);
  } else {
    size_t bytes = shared->steps % 42 < 2 ? kLarge[1] : kLarge[2];
    auto* start = static_cast<unsigned char*>(rdmalloc_malloc(bytes));
    if (start == nullptr) _exit(3);
    fill({start, bytes}, mark_of(index));
    block = {start, bytes};
  }
  shared->is_watched = false;
}

// Until they are deferred.
void go_through_buffers() {
  for (int round = 0; round < 5; round++)
    for (size_t bytes : kBuffers) {
      void* all[12];
      for (void*& block : all) block = rdmalloc_malloc(bytes);
      for (void* block : all) rdmalloc_free(block);
    }
  if (rdmalloc::detail::this_cache->deferred == nullptr) _exit(6);
}

// The history: runs of allocations and of frees, so that magazines fill and empty, and now and then
// a purge, of pages of slabs too.
void operate(Random& random) {
  for (;;) {
    wait_while(kIdle);
    if (shared->is_ending) return;
    if (shared->steps == 0) go_through_buffers();
    for (; shared->steps > 0; shared->steps--) {
      if (shared->steps == shared->purge_at) {
        enter(7);
        if (rdmalloc_purge(0) < 0) _exit(4);
        shared->is_watched = false;
        continue;
      }
      if (kind_here->in_a_row) {
        operate_in_a_row();
        continue;
      }
      if (kind_here->places > 1 && shared->steps % 40 == 7) {
        uint64_t place = random.below(static_cast<uint64_t>(kind_here->places));
        enter();
        if (rdmalloc_ctl("thread.place", nullptr, nullptr, &place, sizeof place) != 0) _exit(5);
        shared->is_watched = false;
      }
      size_t index = random.below(kBlocks);
      bool is_freeing = random.below(100) < (shared->steps / 60 % 2 == 0 ? 85 : 15);
      // The next one that is as wanted.
      for (size_t i = 0; i < kBlocks && (shared->live[index].start != nullptr) != is_freeing; i++)
        index = (index + 1) % kBlocks;
      Block block = shared->live[index];
      if (block.start != nullptr) {
        shared->live[index] = {};
        enter(stride_of(block.bytes));
        rdmalloc_free(block.start);
        shared->is_watched = false;
        continue;
      }
      size_t kind = random.below(64);
      block.bytes = kSizes[kind < 2 ? 4 : kind < 8 ? 3 : kind % 3];
      if (kind_here->has_buffers && kind % 2 == 0) block.bytes = kBuffers[kind / 2 % 3];
      if (kind_here->places > 1 && kind % 8 == 0) block.bytes = kLarge[kind / 8 % 4];
      enter(stride_of(block.bytes));
      block.start = static_cast<unsigned char*>(allocate(block.bytes));
      shared->is_watched = false;
      if (block.start == nullptr) _exit(3);
      fill(block, mark_of(index));
      shared->live[index] = block;
    }
    set(kIdle);
  }
}

int complain(const char* what, uint64_t index) {
  dprintf(2, "the other thread was stopped at a store to %p: %s %lu\n",
          reinterpret_cast<void*>(shared->stopped_at), what, index);
  return 1;
}

int count_walked() {
  static int walked;
  walked = 0;
  auto count = [](void*, size_t, void*) {
    walked++;
    return 0;
  };
  return rdmalloc_heap_walk(shared->heap, count, nullptr) == 0 ? walked : -1;
}

// Each live block of the history lives in the heap, and besides them the one at most that was on
// its way.
int check_walk() {
  size_t live = shared->of_forking_thread.size();
  for (const Block& block : shared->live) live += block.start != nullptr;
  int walked = count_walked();
  if (walked == static_cast<int>(live) || walked == static_cast<int>(live) + 1) return 0;
  dprintf(2, "%zu blocks live, ", live);
  return complain("blocks walked:", static_cast<size_t>(walked));
}

// Once all but that one are freed, nothing is left but its span; and after destroy nothing at all.
int check_end_of_heap() {
  rdmalloc_heap_counters counters = {};
  counters.size = sizeof counters;
  if (rdmalloc_heap_stats(shared->heap, &counters) != 0) return complain("no statistics", 0);
  if (counters.live_blocks > 1) return complain("live blocks:", counters.live_blocks);
  if (count_walked() != static_cast<int>(counters.live_blocks))
    return complain("blocks counted that are not walked:", counters.live_blocks);
  if (counters.span_bytes > counters.live_blocks * (512 << 10))
    return complain("bytes of spans:", counters.span_bytes);
  if (rdmalloc_heap_destroy(shared->heap) != 0) return complain("no destroy", 0);
  uint64_t left = 0;
  size_t size = sizeof left;
  rdmalloc_ctl("stats.heap_bytes", &left, &size, nullptr, 0);
  return left == 0 ? 0 : complain("bytes left of the heap:", left);
}

// All is free, but of what was on its way one block at most.
int check_end() {
  uint64_t large = 0;
  size_t size = sizeof large;
  rdmalloc_ctl("stats.large_spans", &large, &size, nullptr, 0);
  return large <= 1 ? 0 : complain("large blocks left:", large);
}

// What the child does: its own blocks, as many as make every free block of these classes be used,
// must be apart from each other and from the parent's.
int check_in_child() {
  shared->metadata->protect(PROT_READ | PROT_WRITE);
  shared->stopped_thread = 0;
  std::vector<Block> mine;
  if (kind_here->in_heap && check_walk() != 0) return 1;
  for (int round = 0; round < 2; round++) {
    mine.clear();
    for (size_t bytes : {kSizes[0], kSizes[1], kFreedOnly, kSizes[2], kSizes[3], kLarge[0],
                         kLarge[1], kLarge[2], kBuffers[0], kBuffers[1], kBuffers[2]}) {
      bool has_all = kind_here->places > 1 || kind_here->in_a_row;
      if (!has_all && (bytes == kLarge[0] || bytes == kLarge[2])) continue;
      bool is_buffer = bytes == kBuffers[0] || bytes == kBuffers[1] || bytes == kBuffers[2];
      if (is_buffer && !kind_here->has_buffers) continue;
      size_t count = is_buffer ? 30 : bytes > 50000 ? 6 : bytes > 5000 ? 40 : 400;
      for (size_t i = 0; i < count; i++) {
        Block block = {static_cast<unsigned char*>(allocate(bytes)), bytes};
        if (block.start == nullptr) return complain("no memory for block", i);
        fill(block, 0xFA);
        mine.push_back(block);
      }
    }
    for (size_t i = 0; i < mine.size(); i++) fill(mine[i], mark_of(i));
    for (size_t i = 0; i < mine.size(); i++)
      if (!is_filled(mine[i], mark_of(i))) return complain("two owners of the child's block", i);
    for (size_t i = 0; i < kBlocks; i++) {
      const Block& block = shared->live[i];
      if (block.start != nullptr && !is_filled(block, mark_of(i)))
        return complain("another owner of the parent's block", i);
    }
    for (const Block& block : mine) rdmalloc_free(block.start);
    // The parent's blocks are this process's to free, too.
    for (Block& block : shared->live) {
      rdmalloc_free(block.start);
      block = {};
    }
    for (void* block : shared->of_forking_thread) rdmalloc_free(block);
    shared->of_forking_thread.clear();
    if (rdmalloc_purge(0) < 0)
      return complain("purge refused in round", static_cast<size_t>(round));
    if (!rdmalloc::page_heap_is_valid())
      return complain("the page heap's equations do not hold, round", static_cast<size_t>(round));
  }
  return kind_here->in_heap ? check_end_of_heap() : check_end();
}

// In a child: forks at each stop of its other thread, which recovers, until that has done so.
void fork_from_a_recovery() {
  for (;;) {
    wait_while(kRuns);
    if (shared->state.load(std::memory_order_acquire) == kIdle) return;
    pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(check_in_child());
    }
    int status = -1;
    bool has_ended = pid > 0 && rdmalloc_test::wait_with_limit(pid, 20000, &status);
    // The recovering thread is left where it stands.
    if (!has_ended) _exit(complain("in a recovery; its child hangs; store", shared->stores));
    if (status != 0)
      _exit(complain("in a recovery; its child is not whole; store", shared->stores));
    set(kRuns);
  }
}

// In a child: its first thread recovers or another one does, and this child's children are born
// meanwhile.
int check_recovery(int index) {
  bool by_first_thread = index % 2 == 0;
  shared->offset = static_cast<uint64_t>(index + shared->steps);
  shared->state = kRuns;
  shared->stopped_thread = 0;
  auto recover = [] {
    shared->stopped_thread = this_process_thread();
    enter(23);
    rdmalloc_purge_pause();  // of all calls the one that does nothing else
    shared->is_watched = false;
    set(kIdle);
  };
  std::thread other([&] { by_first_thread ? fork_from_a_recovery() : recover(); });
  by_first_thread ? recover() : fork_from_a_recovery();
  other.join();
  rdmalloc_purge_resume();
  return check_in_child();
}

// Of so many children one is forked from while it recovers.
constexpr int kRecoveriesWatched = 40;

bool child_is_whole(int index) {
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (index % kRecoveriesWatched != 0) _exit(check_in_child());
    _exit(check_recovery(index / kRecoveriesWatched));
  }
  int status = -1;
  if (pid < 0) return false;
  if (!rdmalloc_test::wait_with_limit(pid, 60000, &status)) {
    ADD_FAILURE() << "the child hangs";
    return false;
  }
  EXPECT_EQ(status, 0) << "the other thread was stopped at a store to "
                       << reinterpret_cast<void*>(shared->stopped_at);
  return status == 0;
}

rdmalloc_heap* make_heap() {
  rdmalloc_heap_attr attr = rdmalloc_test::heap_attr();
  rdmalloc_domain* domain = nullptr;
  if (kind_here->in_region) {
    domain = rdmalloc_test::open_domain();  // never asked to register in a child
    attr.budget_bytes = size_t{128} << 20;
    attr.domains = &domain;
    attr.domain_count = 1;
  }
  rdmalloc_heap* heap = nullptr;
  EXPECT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  return heap;
}

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = new (memory) Shared;
    thread_ = std::thread([this] {
      shared->stopped_thread = this_process_thread();
      operate(random_);
    });
    while (shared->stopped_thread.load() == 0) sched_yield();
    metadata_ = new Metadata(rdmalloc_test::own_memory());
    shared->metadata = metadata_;
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &action, &fault_before_);
    action.sa_sigaction = on_trap;
    sigaction(SIGTRAP, &action, &trap_before_);
  }
  ~History() {
    shared->is_ending = true;
    start(0);
    thread_.join();
    sigaction(SIGSEGV, &fault_before_, nullptr);
    sigaction(SIGTRAP, &trap_before_, nullptr);
    shared = nullptr;
    delete metadata_;
  }
  // Goes on by so many operations, unwatched.
  void run(int64_t steps) {
    start(steps);
    wait_while(kRuns);
  }
  // Makes half of the places that are free the history's to free, with blocks that this thread
  // allocates.
  void give_blocks() {
    for (size_t i = 0; i < kBlocks; i += 2) {
      Block& block = shared->live[i];
      if (block.start != nullptr) continue;
      block = {static_cast<unsigned char*>(rdmalloc_malloc(kFreedOnly)), kFreedOnly};
      ASSERT_NE(block.start, nullptr);
      fill(block, mark_of(i));
    }
  }
  // As run(), with a child at each store; how many, or -1 when one was not whole.
  int run_watched(int64_t steps) {
    metadata_->find();
    metadata_->protect(PROT_READ);
    start(steps);
    int children = 0;
    bool failed = false;
    for (;; children++) {
      wait_while(kRuns);
      if (shared->state.load(std::memory_order_acquire) == kIdle) break;
      if (!child_is_whole(children)) {
        failed = true;
        shared->stopped_thread = 0;  // goes on without stops
      }
      set(kRuns);
    }
    metadata_->protect(PROT_READ | PROT_WRITE);
    return failed ? -1 : children;
  }

 private:
  static void start(int64_t steps) {
    shared->steps = steps;
    set(kRuns);
  }
  Random random_;
  std::thread thread_;
  Metadata* metadata_ = nullptr;
  struct sigaction fault_before_ = {}, trap_before_ = {};
};

TEST_P(ForkAtStores, I11_a_child_born_at_any_store_of_another_thread_is_whole) {
  ASSERT_NE(kind_here, nullptr) << "one kind a process: --gtest_filter=*/" << GetParam();
  uint64_t seed = rdmalloc_test::test_seed(1);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  History history(seed);
  if (kind_here->in_heap) shared->heap = make_heap();
  ASSERT_EQ(shared->heap != nullptr, kind_here->in_heap);
  // This thread has a cache of its own, in use when the child is born.
  std::vector<void*>& mine = shared->of_forking_thread;
  for (size_t bytes : kSizes)
    for (int i = 0; i < 20; i++) mine.push_back(allocate(bytes));
  // The first operations, where everything is made, and stretches of a history that goes on.
  const char* told = getenv("TEST_STRETCHES");
  int stretches = told != nullptr ? atoi(told) : 1;
  int children = 0;
  for (int stretch = 0; stretch < stretches; stretch++) {
    shared->purge_at = 1 + stretch * 120 / stretches;  // while more is live, or less
    if (!kind_here->in_heap && !kind_here->in_a_row) history.give_blocks();
    for (int i = 0; kind_here->in_a_row && i < 20; i++) rdmalloc_free(rdmalloc_malloc(kLarge[2]));
    if (kind_here->has_buffers) history.run(0);
    int here = history.run_watched(120);
    ASSERT_GE(here, 0) << "stretch " << stretch;
    children += here;
    history.run(kBlocks / 2);
  }
  printf("%d children\n", children);
  EXPECT_GT(children, stretches * 100);
  if (kind_here->places > 1) {
    EXPECT_GT(rdmalloc_test::counter("stats.segments"), 1u);
  }
  for (void* block : mine) rdmalloc_free(block);
  if (kind_here->in_heap) {
    EXPECT_EQ(rdmalloc_heap_destroy(shared->heap), 0);
  }
}

#else

TEST_P(ForkAtStores, I11_a_child_born_at_any_store_of_another_thread_is_whole) {
  GTEST_SKIP() << "SKIP: steps one instruction by x86-64's trap flag";
}

#endif

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc + 1);  // GoogleTest takes its own out of argv
  ::testing::InitGoogleTest(&argc, argv);
  for (const Kind& kind : kKinds)
    if (GTEST_FLAG_GET(filter).ends_with(std::string("/") + kind.name)) kind_here = &kind;
  if (kind_here != nullptr)
    rdmalloc_test::ensure_environment(arguments.data(), kind_here->environment);
  return RUN_ALL_TESTS();
}
