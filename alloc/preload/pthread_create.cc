// In librdmalloc.so only: a program's first thread is the moment to start the purge thread, outside
// malloc and with no lock held. A program without threads of its own does not get one this way.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

#include "alloc/pages/purge.h"

namespace {

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

Create real_create() {
  static constinit std::atomic<Create> found{nullptr};
  // Relaxed: every thread that looks finds the same function.
  Create create = found.load(std::memory_order_relaxed);
  if (create == nullptr) {
    create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    found.store(create, std::memory_order_relaxed);
  }
  return create;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
    void* argument) noexcept {
  // A refusal (manual mode, no thread to be had) is counted and reported there; it is no reason to
  // refuse the program its own. The purge thread's own creation comes through here too and returns
  // at once, since it is being started.
  rdmalloc::purge_thread_start();
  return real_create()(thread, attributes, start, argument);
}
