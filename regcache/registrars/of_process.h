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
    pthread_mutex_lock(&lock_);
    if (!has_handler_)
      has_handler_ = !should_fail("fork_handler") && pthread_atfork(nullptr, nullptr, forget) == 0;
    if (shared_ == nullptr && has_handler_) {
      shared_ = allocate<T>();
      if (shared_ != nullptr) pthread_mutex_init(&shared_->lock, nullptr);
    }
    T* shared = has_handler_ ? shared_ : nullptr;
    if (shared != nullptr) ++users_;
    pthread_mutex_unlock(&lock_);
    return shared;
  }
  static void give(T* shared) {
    pthread_mutex_lock(&lock_);
    bool is_last = shared == shared_ && --users_ == 0;
    if (is_last) shared_ = nullptr;
    pthread_mutex_unlock(&lock_);
    if (!is_last) return;
    shared->release();
    pthread_mutex_destroy(&shared->lock);
    std::free(shared);
  }

 private:
  // In the child, whose one thread may find the lock held by a thread of the parent.
  static void forget() {
    lock_ = PTHREAD_MUTEX_INITIALIZER;
    shared_ = nullptr;
    users_ = 0;
  }

  static inline pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
  static inline T* shared_ = nullptr;
  static inline std::size_t users_ = 0;
  static inline bool has_handler_ = false;
};

}  // namespace rdmalloc::registrars
