// A process ends with its last thread, also while foreign memory is watched: pthread_exit() in
// main, and the threads of Watch are no reason to live on. Its exit handlers run on whichever
// thread is the last, and what they unmap keeps no thread waiting. Fails, by hanging, when help()
// does not look whether it is the last, or when is_ending() leaves memory watched. Built over the
// prefixed library too, where nothing tells of the end of main's thread.
#include <pthread.h>
#include <rdmalloc/regcache.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/kernel_has.h"

namespace {

constexpr std::size_t kBytes = 65536;
char* memory = nullptr;

int register_nothing(void*, void*, size_t, uint32_t, rdmalloc_key*) {
  return 0;
}
int deregister_nothing(void*, void*, size_t, const rdmalloc_key*) {
  return 0;
}

void* end_late(void*) {
  usleep(100000);  // main's thread is gone by now, and has been looked at
  return nullptr;
}

}  // namespace

int main() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "nothing";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = register_nothing;
  ops.deregister = deregister_nothing;
  rdmalloc_domain* domain = nullptr;
  if (rdmalloc_domain_open(&ops, nullptr, nullptr, &domain) != 0) return 1;
  void* block = malloc(100);  // over librdmalloc.so this makes main's thread known
  memory = static_cast<char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  rdmalloc_reg* reg = nullptr;
  if (rdmalloc_reg_get(domain, memory, kBytes, RDMALLOC_ACCESS_LOCAL, &reg) != 0) return 1;
  rdmalloc_reg_put(reg);
  rdmalloc_watch_counters watch = {};
  watch.size = sizeof watch;
  rdmalloc_watch_stats(&watch);
  if (rdmalloc_test::userfaultfd_error() != 0) {
    std::puts("SKIP: no userfaultfd here");
    return 77;
  }
  if (watch.is_on == 0) return 1;
  std::atexit([] {
    munmap(memory, kBytes);
    std::puts("exit handlers ran");
  });
  pthread_t thread;
  if (pthread_create(&thread, nullptr, end_late, nullptr) != 0) return 1;
  free(block);
  pthread_exit(nullptr);
}
