// SPDX-License-Identifier: BSD-3-Clause
//
// What malloc_settings_test runs under settings and limits. Ordinary work; with "exhaust" also:
// take memory until there is none, which must be NULL and ENOMEM, then free and go on as before.
// "lower", "unseen", "raise", "vfork": RLIMIT_AS at run time; "heap_before", "heap_after": lowered
// with a heap of the user; "heap_locked": RLIMIT_MEMLOCK. "fork": elsewhere, with a child that
// ends as a program does. "die": by a signal. "twice BYTES [thread]": frees a block twice.
#include <dlfcn.h>
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

static void fail(const char* what) {
  printf("failed: %s (errno %d)\n", what, errno);
  exit(1);
}

static void work(size_t seed) {
  enum { kBlocks = 300 };
  unsigned char* blocks[kBlocks] = {};
  size_t bytes[kBlocks] = {};
  for (size_t i = 0; i < 20000; i++) {
    size_t at = (i * 7919 + seed) % kBlocks;
    if (blocks[at] != nullptr) {
      if (blocks[at][bytes[at] - 1] != at % 256) fail("a block lost its last byte");
      free(blocks[at]);
      blocks[at] = nullptr;
      continue;
    }
    bytes[at] = i % 50 == 0 ? 100000 + i : 1 + i % 3000;
    blocks[at] = static_cast<unsigned char*>(malloc(bytes[at]));
    if (blocks[at] == nullptr) fail("malloc");
    blocks[at][bytes[at] - 1] = static_cast<unsigned char>(at);
  }
  for (unsigned char* block : blocks) free(block);
}

static void* work_on_thread(void* seed) {
  work(reinterpret_cast<size_t>(seed));
  return nullptr;
}

static void work_on_threads() {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 512 * 1024);
  pthread_t threads[4];
  for (size_t i = 0; i < 4; i++)
    if (pthread_create(&threads[i], &small, work_on_thread, reinterpret_cast<void*>(i)) != 0)
      fail("pthread_create");
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
}

// Blocks of `bytes` until malloc says no; the chain lies in the blocks themselves.
static size_t exhaust(size_t bytes) {
  void** chain = nullptr;
  size_t count = 0;
  for (;;) {
    errno = 0;
    auto** block = static_cast<void**>(malloc(bytes));
    if (block == nullptr) break;
    *block = chain;
    chain = block;
    if (++count * bytes > (size_t{64} << 30u)) fail("no end to memory");
  }
  if (errno != ENOMEM) fail("errno is not ENOMEM");
  while (chain != nullptr) {
    auto** next = static_cast<void**>(*chain);
    free(chain);
    chain = next;
  }
  return count;
}

// ------------------------------------------------------------------ RLIMIT_AS at run time

static const size_t kGiB = size_t{1} << 30u;

static void set_address_limit(rlim_t bytes) {
  struct rlimit limit = {bytes, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) fail("setrlimit");
}
static bool can_have(size_t bytes) {
  errno = 0;
  void* block = malloc(bytes);
  if (block == nullptr && errno != ENOMEM) fail("errno is not ENOMEM");
  free(block);
  return block != nullptr;
}

// As without us: what fits the limit is to be had, by mmap and for stacks too, and no more.
static void lower_the_limit() {
  set_address_limit(4 * kGiB);
  if (can_have(8 * kGiB)) fail("malloc of 8 GiB under a limit of 4");
  void* mapped = mmap(nullptr, kGiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) fail("mmap of 1 GiB under a limit of 4");
  if (!can_have(kGiB)) fail("malloc of 1 GiB under a limit of 4");
  work_on_threads();
  set_address_limit(RLIM_INFINITY);
  if (!can_have(8 * kGiB)) fail("malloc of 8 GiB after the limit was raised");
}
// Past libc, as another process would.
static void lower_the_limit_unseen() {
  struct rlimit limit = {4 * kGiB, RLIM_INFINITY};
  if (syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, nullptr) != 0) fail("prlimit");
  if (can_have(8 * kGiB)) fail("malloc of 8 GiB under a limit of 4");
  if (!can_have(kGiB)) fail("malloc of 1 GiB under a limit of 4");
}
// A child of vfork() has its own limits, and its parent's memory.
static size_t mapped_pages() {
  FILE* statm = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  if (statm == nullptr || fscanf(statm, "%zu", &pages) != 1) fail("statm");
  fclose(statm);
  return pages;
}
static void lower_a_childs_limit() {
  size_t before = mapped_pages();
  pid_t child = vfork();
  if (child == 0) {
    struct rlimit limit = {kGiB, kGiB};
    _exit(setrlimit(RLIMIT_AS, &limit) == 0 ? 0 : 1);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) fail("vfork or setrlimit");
  if (mapped_pages() != before) fail("the parent gave up addresses for its child's limit");
}
static void raise_the_limit() {
  if (can_have(4 * kGiB)) fail("malloc of 4 GiB under a limit of 1");
  set_address_limit(RLIM_INFINITY);
  if (!can_have(4 * kGiB)) fail("malloc of 4 GiB after the limit of 1 was raised");
}

// A heap of the user reserves addresses for all that there may be.
static void make_heaps(int count) {
  auto create =
      reinterpret_cast<int (*)(const void*, void**)>(dlsym(RTLD_DEFAULT, "rdmalloc_heap_create"));
  if (create == nullptr) fail("dlsym");
  for (void* heap = nullptr; count > 0; count--)
    if (create(nullptr, &heap) != 0) fail("rdmalloc_heap_create");
}
static const size_t kRoomBytes = size_t{96} << 20u;

static void lower_the_limit_beside_heaps(bool before) {
  if (before) make_heaps(1);
  set_address_limit(kRoomBytes);
  make_heaps(before ? 40 : 1);
  if (!can_have(kRoomBytes / 2)) fail("malloc of 48 MiB under a limit of 96");
  make_heaps(20);
}
// What is reserved counts as locked, also where the limit is too low for the rest.
static void lock_all_beside_a_heap() {
  make_heaps(1);
  struct rlimit limit;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) fail("getrlimit");
  if (limit.rlim_cur > kRoomBytes) limit.rlim_cur = kRoomBytes;
  if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) fail("setrlimit");
  if (syscall(SYS_capset, &header, data) != 0) fail("capset");
  if (mlockall(MCL_CURRENT) != 0 && limit.rlim_cur == kRoomBytes) fail("mlockall");
  if (mapped_pages() * static_cast<size_t>(sysconf(_SC_PAGESIZE)) > kRoomBytes)
    fail("what heaps may need is reserved still");
  make_heaps(20);
}

// The order that a look at the block freed last does not see. Says which address is wrong.
static void free_twice(size_t bytes, bool by_another_thread) {
  void* one = malloc(bytes);
  void* other = malloc(bytes);
  free(one);
  free(other);
  printf("twice %p\n", one);
  fflush(stdout);
  if (!by_another_thread) return free(one);
  pthread_t thread;
  auto free_on_thread = [](void* block) -> void* {
    free(block);
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, free_on_thread, one) != 0) fail("pthread_create");
  pthread_join(thread, nullptr);
}

int main(int argc, char** argv) {
  work(1);
  work_on_threads();
  const char* also = argc > 1 ? argv[1] : "";
  if (strcmp(also, "die") == 0) raise(SIGKILL);
  if (strcmp(also, "lower") == 0) lower_the_limit();
  if (strcmp(also, "unseen") == 0) lower_the_limit_unseen();
  if (strcmp(also, "raise") == 0) raise_the_limit();
  if (strcmp(also, "twice") == 0) free_twice(strtoul(argv[2], nullptr, 10), argc > 3);
  if (strcmp(also, "vfork") == 0) lower_a_childs_limit();
  if (strcmp(also, "heap_before") == 0) lower_the_limit_beside_heaps(true);
  if (strcmp(also, "heap_after") == 0) lower_the_limit_beside_heaps(false);
  if (strcmp(also, "heap_locked") == 0) lock_all_beside_a_heap();
  if (strcmp(also, "fork") == 0) {
    if (chdir("/") != 0) fail("chdir");
    if (fork() == 0) {
      work(3);
      exit(0);
    }
    wait(nullptr);
  }
  if (strcmp(also, "exhaust") == 0) {
    for (size_t bytes : {size_t{32} << 20u, size_t{100000}, size_t{1000}, size_t{3} << 20u}) {
      size_t first = exhaust(bytes);
      size_t second = exhaust(bytes);
      printf("%zu blocks of %zu, then %zu\n", first, bytes, second);
      if (first == 0) fail("no memory at all");
      // All was freed: what fitted once fits again, but for a tenth that caches may hold.
      if (second < first - first / 10) fail("freed memory did not come back");
    }
    work(2);
  }
  puts("all is well");
  return 0;
}
