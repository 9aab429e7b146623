// SPDX-License-Identifier: BSD-3-Clause
//
// I1, traced: an allocation storm whose threads carry, from their start to their end, a seccomp
// filter that turns every forbidden call of theirs into SIGSYS. Forbidden: madvise (but for
// MADV_HUGEPAGE and MADV_NOHUGEPAGE), munmap, mremap, process_madvise, brk, mmap with MAP_FIXED.
//
//   i1_trace THREADS OPERATIONS_PER_THREAD
//
// Runs on whatever malloc it is given. Ends with 0 when there was no such call, and with 1 after
// printing how many of which there were and the stacks of the first.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::Random;

// ------------------------------------------------------------------ what was caught

constexpr int kShown = 4, kFrames = 24;
struct Finding {
  long call;
  unsigned long arguments[6];
  void* frames[kFrames];
  int frame_count;
};
Finding findings[kShown];
std::atomic<int> finding_count{0};
thread_local bool is_traced = false;  // between a thread's start and its end

struct Name {
  long call;
  const char* text;
};
constexpr Name kForbidden[] = {{SYS_madvise, "madvise"}, {SYS_munmap, "munmap"},
                               {SYS_mremap, "mremap"},   {SYS_process_madvise, "process_madvise"},
                               {SYS_brk, "brk"},         {SYS_mmap, "mmap(MAP_FIXED)"}};
constexpr size_t kForbiddenCount = sizeof kForbidden / sizeof kForbidden[0];
std::atomic<unsigned long> counts[kForbiddenCount];

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
void read_arguments(const ucontext_t* context, unsigned long* arguments) {
  const int order[6] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
  for (int i = 0; i < 6; i++)
    arguments[i] = static_cast<unsigned long>(context->uc_mcontext.gregs[order[i]]);
}
void set_result(ucontext_t* context, long result) {
  context->uc_mcontext.gregs[REG_RAX] = result;
}
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
void read_arguments(const ucontext_t* context, unsigned long* arguments) {
  for (int i = 0; i < 6; i++) arguments[i] = context->uc_mcontext.regs[i];
}
void set_result(ucontext_t* context, long result) {
  context->uc_mcontext.regs[0] = static_cast<unsigned long>(result);
}
#else
#error "tell where this architecture keeps the arguments of a system call"
#endif

// The call was not made. What its caller is told lets every malloc go on: giving back "worked",
// there is nothing to be had by mremap and MAP_FIXED, and the break (which brk returns) is at 0.
void on_forbidden_call(int, siginfo_t* info, void* raw_context) {
  auto* context = static_cast<ucontext_t*>(raw_context);
  Finding found = {};
  read_arguments(context, found.arguments);
  found.call = info->si_syscall;
  bool gives_back =
      found.call == SYS_munmap || found.call == SYS_madvise || found.call == SYS_process_madvise;
  set_result(context, gives_back || found.call == SYS_brk ? 0 : -ENOMEM);
  if (!is_traced) return;
  for (size_t i = 0; i < kForbiddenCount; i++)
    if (kForbidden[i].call == found.call) counts[i].fetch_add(1);
  int slot = finding_count.fetch_add(1);
  if (slot >= kShown) return;
  found.frame_count = backtrace(found.frames, kFrames);
  findings[slot] = found;
}

// ------------------------------------------------------------------ the filter

// clang-format off
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TRAP BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)
constexpr sock_filter kFilter[] = {
    LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0), ALLOW,
    LOAD(nr),
    UNLESS(SYS_munmap, 1), TRAP,
    UNLESS(SYS_mremap, 1), TRAP,
    UNLESS(SYS_brk, 1), TRAP,
    UNLESS(SYS_process_madvise, 1), TRAP,
    UNLESS(SYS_madvise, 6), LOAD(args[2]), UNLESS(MADV_HUGEPAGE, 1), ALLOW,
    UNLESS(MADV_NOHUGEPAGE, 1), ALLOW, TRAP,
    UNLESS(SYS_mmap, 3), LOAD(args[3]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 1), TRAP,
    ALLOW,
};
// clang-format on

// On the calling thread only, for the rest of its life.
void forbid_on_this_thread() {
  sock_fprog filter = {sizeof kFilter / sizeof kFilter[0], const_cast<sock_filter*>(kFilter)};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) {
    perror("seccomp");
    _exit(3);
  }
}

// ------------------------------------------------------------------ the storm

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr size_t kSmallSlots = 2000, kLargeSlots = 16, kShared = 1024;
std::atomic<unsigned char*> shared_blocks[kShared];  // freed by the thread that finds them
size_t operations_per_thread;
bool may_be_refused = false;  // a limit is set that the storm comes to
pthread_barrier_t all_ended;

size_t storm_size(Random& random, bool large) {
  return large ? random.size_between(32 * kKiB, 8 * kMiB) : random.size_between(1, 32 * kKiB);
}

// Touches both ends, and now and then a byte of each page.
void touch(unsigned char* block, size_t bytes, uint64_t step) {
  block[0] = 1;
  block[bytes - 1] = 2;
  if (step % 64 != 0) return;
  for (size_t at = 0; at < bytes; at += 4096) block[at] = 3;
}

// rdmalloc's own calls, when this runs on it: a quarter of a thread's blocks comes from a heap.
decltype(&rdmalloc_heap_create) heap_create;
decltype(&rdmalloc_heap_destroy) heap_destroy;
decltype(&rdmalloc_heap_malloc) heap_malloc;

// A heap's whole life.
void live_of_a_heap(Random& random) {
  rdmalloc_heap* heap = nullptr;
  if (heap_create(nullptr, &heap) != 0) _exit(4);
  for (int i = 0; i < 100; i++) {
    size_t bytes = storm_size(random, i % 32 == 0);
    auto* block = static_cast<unsigned char*>(heap_malloc(heap, bytes));
    if (block == nullptr && may_be_refused) continue;
    touch(block, bytes, 0);
    if (i % 3 == 0) free(block);
  }
  if (heap_destroy(heap) != 0) _exit(4);
}

unsigned char* make(Random& random, size_t bytes, rdmalloc_heap* heap) {
  void* block = nullptr;
  if (heap != nullptr && random.below(4) == 0)
    return static_cast<unsigned char*>(heap_malloc(heap, bytes));
  switch (random.below(bytes > 64 * kKiB ? 256 : 16)) {
    case 0:
      block = calloc(1, bytes);
      break;
    case 1:
      if (posix_memalign(&block, size_t{16} << random.below(9), bytes) != 0) block = nullptr;
      break;
    case 2:
      block = realloc(nullptr, bytes);
      break;
    default:
      block = malloc(bytes);
      break;
  }
  if (block == nullptr && !may_be_refused) {
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    _exit(4);
  }
  return static_cast<unsigned char*>(block);
}

void* storm(void* argument) {
  forbid_on_this_thread();
  is_traced = true;
  Random random(reinterpret_cast<uintptr_t>(argument));
  constexpr size_t kSlots = kSmallSlots + kLargeSlots;
  auto** blocks = static_cast<unsigned char**>(calloc(kSlots, sizeof(unsigned char*)));
  rdmalloc_heap* heap = nullptr;
  if (heap_create != nullptr && heap_create(nullptr, &heap) != 0) _exit(4);
  for (size_t step = 0; step < operations_per_thread; step++) {
    if (heap != nullptr && step % 4096 == 0) live_of_a_heap(random);
    bool large = random.below(64) == 0;
    size_t at = large ? kSmallSlots + random.below(kLargeSlots) : random.below(kSmallSlots);
    unsigned char** slot = &blocks[at];
    size_t bytes = storm_size(random, large);
    if (*slot == nullptr) {
      *slot = make(random, bytes, heap);
      if (*slot != nullptr) touch(*slot, bytes, step);
    } else if (random.below(16) == 0) {
      void* moved = realloc(*slot, bytes);
      if (moved == nullptr && may_be_refused) continue;
      *slot = static_cast<unsigned char*>(moved);
      touch(*slot, bytes, step);
    } else if (random.below(16) == 0) {
      free(shared_blocks[random.below(kShared)].exchange(*slot));
      *slot = nullptr;
    } else {
      free(*slot);
      *slot = nullptr;
    }
  }
  for (size_t i = 0; i < kSlots; i++) free(blocks[i]);
  free(blocks);
  // Its last blocks are the other threads' to free, so it stays.
  is_traced = false;
  pthread_barrier_wait(&all_ended);
  // Not by returning: libc gives the stack back with all signals blocked, which the filter kills.
  for (;;) pause();
}

// ------------------------------------------------------------------ the outcome

void print_findings() {
  int shown = finding_count.load() < kShown ? finding_count.load() : kShown;
  for (int i = 0; i < shown; i++) {
    const Finding& found = findings[i];
    printf("system call %ld (%#lx, %#lx, %#lx, %#lx)\n", found.call, found.arguments[0],
           found.arguments[1], found.arguments[2], found.arguments[3]);
    fflush(stdout);
    backtrace_symbols_fd(found.frames, found.frame_count, 1);
  }
}

// That purging really went on meanwhile, when this runs on rdmalloc.
void print_counters() {
  auto* ctl = reinterpret_cast<decltype(&rdmalloc_ctl)>(dlsym(RTLD_DEFAULT, "rdmalloc_ctl"));
  uint64_t purges = 0;
  size_t size = sizeof purges;
  if (ctl != nullptr && ctl("stats.purges", &purges, &size, nullptr, 0) == 0)
    printf("purges=%lu\n", static_cast<unsigned long>(purges));
  uint64_t take_backs = 0;
  if (ctl != nullptr && ctl("stats.take_backs", &take_backs, &size, nullptr, 0) == 0)
    printf("take_backs=%lu\n", static_cast<unsigned long>(take_backs));
}

}  // namespace

int main(int argc, char** argv) {
  size_t thread_count = argc > 1 ? strtoull(argv[1], nullptr, 10) : 0;
  operations_per_thread = argc > 2 ? strtoull(argv[2], nullptr, 10) : 0;
  may_be_refused = argc > 3 && strcmp(argv[3], "refused") == 0;
  if (thread_count == 0 || thread_count > 64 || operations_per_thread == 0) {
    fprintf(stderr, "usage: %s THREADS(1-64) OPERATIONS_PER_THREAD [refused]\n", argv[0]);
    return 2;
  }
  heap_create =
      reinterpret_cast<decltype(heap_create)>(dlsym(RTLD_DEFAULT, "rdmalloc_heap_create"));
  heap_destroy =
      reinterpret_cast<decltype(heap_destroy)>(dlsym(RTLD_DEFAULT, "rdmalloc_heap_destroy"));
  heap_malloc =
      reinterpret_cast<decltype(heap_malloc)>(dlsym(RTLD_DEFAULT, "rdmalloc_heap_malloc"));
  void* warm_up[2];
  backtrace(warm_up, 2);  // its first call loads a library
  struct sigaction action = {};
  action.sa_sigaction = on_forbidden_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSYS, &action, nullptr);

  pthread_barrier_init(&all_ended, nullptr, static_cast<unsigned>(thread_count) + 1);
  for (size_t i = 0; i < thread_count; i++) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, storm, reinterpret_cast<void*>(i + 1)) != 0) return 5;
  }
  pthread_barrier_wait(&all_ended);
  for (auto& block : shared_blocks) free(block.exchange(nullptr));

  printf("operations=%zu forbidden=%d\n", thread_count * operations_per_thread,
         finding_count.load());
  for (size_t i = 0; i < kForbiddenCount; i++)
    printf("%s=%lu\n", kForbidden[i].text, counts[i].load());
  print_counters();
  print_findings();
  return finding_count.load() == 0 ? 0 : 1;
}
