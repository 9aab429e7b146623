// Where a thread of the program's may not be cancelled.
#pragma once

#include <pthread.h>

namespace rdmalloc::os {

// No pthread_cancel() ends the calling thread before the end of the scope, with a lock, a gate or a
// turn held: pthread_join() is where cancelled threads end, and so is what the program's own
// functions call.
class NoCancelScope {
 public:
  NoCancelScope() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancelScope() { pthread_setcancelstate(before_, nullptr); }
  NoCancelScope(const NoCancelScope&) = delete;
  NoCancelScope& operator=(const NoCancelScope&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace rdmalloc::os
