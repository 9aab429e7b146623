// What all domains of one registrar share, where the resource beneath is the process's: SPDK's map,
// locked pages. Made with the first domain, forgotten with the last. A child of fork has none of
// its parent's registrations, so it begins anew.
#pragma once

#include <pthread.h>

#include "regcache/registrars/fault.h"

namespace rdmalloc::registrars {

// T: zeroed is empty; has a `pthread_mutex_t lock`, and release() gives back what it has allocated.
template <class T>
class OfProcess {
 public:
  // One more user; NULL when there is no memory.
  static T* take() {
    pthread_mutex_lock(&mutex);
    if (!has_handler) has_handler = add_handler();
    if (object == nullptr && has_handler) {
      object = allocate<T>();
      if (object != nullptr) pthread_mutex_init(&object->lock, nullptr);
    }
    T* shared = has_handler ? object : nullptr;
    if (shared != nullptr) ++users;
    pthread_mutex_unlock(&mutex);
    return shared;
  }
  static void give(T* shared) {
    pthread_mutex_lock(&mutex);
    bool is_last = shared == object && --users == 0;
    if (is_last) object = nullptr;
    pthread_mutex_unlock(&mutex);
    if (!is_last) return;
    shared->release();
    pthread_mutex_destroy(&shared->lock);
    std::free(shared);
  }

 private:
  // In the child, whose one thread may find the lock held by a thread of the parent.
  static void forget() {
    mutex = PTHREAD_MUTEX_INITIALIZER;
    object = nullptr;
    users = 0;
  }

  static inline pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static inline T* object = nullptr;
  static inline std::size_t users = 0;
  static bool add_handler() {
    return !should_fail("fork_handler") && pthread_atfork(nullptr, nullptr, forget) == 0;
  }
  // From the time on when the registrar is loaded: a child whose fork comes amid the first take()
  // finds the lock held. Where it couldn't be added then, take() tries again.
  static inline bool has_handler = add_handler();
};

}  // namespace rdmalloc::registrars
