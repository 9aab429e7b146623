// Whether this thread is inside code of the user's that we have called: a registrar, a domain's
// `event`, a completion, a progress function. A quiesce from there would wait for itself. The
// caller's errno is restored after such code.
#pragma once

#include <errno.h>

#include "alloc/for_regcache.h"

namespace rdmalloc::regcache {

inline constinit thread_local unsigned callbacks_under_way = 0;

// Nor is the thread cancelled there, with what the call holds: a registration in flight, a turn.
struct CallbackScope {
  CallbackScope() { ++callbacks_under_way; }
  ~CallbackScope() {
    --callbacks_under_way;
    errno = saved_errno_;
  }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

 private:
  os::NoCancelScope no_cancel_;
  int saved_errno_ = errno;
};

// Whether this thread drops registrations, or tells that some are gone. To close a domain from
// there would wait for what this thread has yet to drop.
inline constinit thread_local unsigned drops_under_way = 0;

struct DropScope {
  DropScope() { ++drops_under_way; }
  ~DropScope() { --drops_under_way; }
  DropScope(const DropScope&) = delete;
  DropScope& operator=(const DropScope&) = delete;
};
inline bool is_dropping() {
  return drops_under_way != 0;
}
inline bool is_in_callback() {
  return callbacks_under_way != 0;
}

// Code of the user's that answers with a positive number breaks its contract: the caller gets an
// errno.
inline int error_of_answer(int answer) {
  return answer > 0 ? -EIO : answer;
}

// Set on a thread that registers for heaps and pools in a resume. Their domains let this
// thread in, and no other until it is through: others would take the room that a limit leaves.
inline constinit thread_local bool registers_in_resume = false;
inline bool may_register_early() {
  return registers_in_resume && !is_in_callback();
}

}  // namespace rdmalloc::regcache
