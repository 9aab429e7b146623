// A pthread_create() that returns late: what the new thread does is done before its maker knows it.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* arg) {
  using Fn = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<Fn>(dlsym(RTLD_NEXT, "pthread_create"));
  int error = next(thread, attributes, run, arg);
  usleep(20000);
  return error;
}
