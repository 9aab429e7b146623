// Whether this thread is inside code of the user's that we have called: a registrar, a domain's
// `event`, a completion, a progress function. A quiesce from there would wait for itself.
#pragma once

namespace rdmalloc::regcache {

inline constinit thread_local unsigned callbacks_under_way = 0;

struct CallbackScope {
  CallbackScope() { ++callbacks_under_way; }
  ~CallbackScope() { --callbacks_under_way; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
};
inline bool is_in_callback() {
  return callbacks_under_way != 0;
}

}  // namespace rdmalloc::regcache
