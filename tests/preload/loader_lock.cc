// SPDX-License-Identifier: BSD-3-Clause
//
// What the library stands in front of, called first by a thread that a library's constructor waits
// for. dlopen() holds the loader's lock there, and dlsym() wants it: glibc's own functions do not.
//
//   loader_lock LIBRARY CASE    LIBRARY's constructor calls run_in_constructor() (loader_lock.c)
//   loader_lock_early           the same before our own constructors, of LOADER_LOCK_LIBRARY and
//                               LOADER_LOCK_CASE: it is linked to loader_lock_early.c
//
// Seen to fail (no end): mprotect, setrlimit, prlimit and pthread_create, while each looked for
// libc's function at its first call; these, malloc, mappings and mlockall early, while
// only constructors did.
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "loader_lock: %s\n", what);
  std::_Exit(1);
}
void expect(bool is_so, const char* what) {
  if (!is_so) fail(what);
}

int has_no_shared_memory;  // an errno

constexpr size_t kPage = 4096;
void* map_page() {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(page != MAP_FAILED, "mmap");
  return page;
}

struct Case {
  const char* name;
  void (*run)();
};
constexpr Case kCases[] = {
    {"mprotect", [] { expect(mprotect(map_page(), kPage, PROT_READ) == 0, "mprotect"); }},
    {"setrlimit",
     [] {
       rlimit limit;
       expect(getrlimit(RLIMIT_CORE, &limit) == 0, "getrlimit");
       expect(setrlimit(RLIMIT_CORE, &limit) == 0, "setrlimit");
     }},
    {"prlimit",
     [] {
       rlimit limit;
       expect(prlimit(0, RLIMIT_CORE, nullptr, &limit) == 0, "prlimit");
     }},
    {"mlockall", [] { mlockall(MCL_FUTURE); }},  // allowed or not
    {"pthread_create",
     [] {
       pthread_t thread;
       auto run = [](void*) -> void* { return std::malloc(100); };
       expect(pthread_create(&thread, nullptr, run, nullptr) == 0, "pthread_create");
       void* block = nullptr;
       expect(pthread_join(thread, &block) == 0, "pthread_join");
       std::free(block);
     }},
    {"mappings",
     [] {
       void* page = map_page();
       expect(madvise(page, kPage, MADV_DONTNEED) == 0, "madvise");
       page = mremap(page, kPage, 2 * kPage, MREMAP_MAYMOVE);
       expect(page != MAP_FAILED, "mremap");
       expect(munmap(page, 2 * kPage) == 0, "munmap");
       int segment = shmget(IPC_PRIVATE, kPage, 0600);
       if (segment < 0) {
         has_no_shared_memory = errno;  // a sandbox
         return;
       }
       void* shared = shmat(segment, nullptr, 0);
       expect(shared != reinterpret_cast<void*>(-1), "shmat");
       expect(shmctl(segment, IPC_RMID, nullptr) == 0, "shmctl");
       expect(shmdt(shared) == 0, "shmdt");
     }},
    {"malloc",
     [] {
       constexpr size_t kBytes = size_t{64} << 20;
       void* block = std::malloc(kBytes);
       std::memset(block, 1, kBytes);
       std::free(block);
       expect(malloc_trim(0) == 1, "malloc_trim");
       std::free(std::malloc(mallinfo2().uordblks % 1000 + 1));
     }},
    {"child",
     [] {
       pid_t child = fork();
       if (child == 0) {
         std::free(std::malloc(100000));
         rlimit limit;
         _exit(getrlimit(RLIMIT_CORE, &limit) | setrlimit(RLIMIT_CORE, &limit) |
               mprotect(map_page(), kPage, PROT_READ));
       }
       int status = -1;
       expect(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child");
     }},
};
const Case* chosen;
bool has_run;

const Case* case_named(const char* name) {
  for (const Case& one : kCases)
    if (name != nullptr && std::strcmp(name, one.name) == 0) return &one;
  fail("which library, which case?");
}

}  // namespace

// Threads by C11, so that the first pthread_create() of the process is the case's. A library's
// constructor that waits for it is what hangs.
extern "C" __attribute__((visibility("default"))) void run_in_constructor() {
  if (chosen == nullptr) chosen = case_named(std::getenv("LOADER_LOCK_CASE"));
  thrd_t thread;
  auto run = [](void*) {
    chosen->run();
    return 0;
  };
  expect(thrd_create(&thread, run, nullptr) == thrd_success, "thrd_create");
  expect(thrd_join(thread, nullptr) == thrd_success, "thrd_join");
  has_run = true;
}

int main(int argc, char** argv) {
  if (argc > 2) {
    chosen = case_named(argv[2]);
    if (dlopen(argv[1], RTLD_NOW) == nullptr) fail(dlerror());
  }
  expect(has_run, "the library has no such constructor");
  if (has_no_shared_memory != 0)
    std::printf("SKIP: no System V memory here for shmat and shmdt: %s\n",
                std::strerror(has_no_shared_memory));
  std::puts("all is well");
  return 0;
}
