// In librdmalloc.so only: a program that lowers RLIMIT_AS of its own. The kernel counts what is
// reserved and not used against it: with the arena's terabyte no mapping more would be had, no
// stack of a thread either.
#include "alloc/interpose/address_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/heaps/heap.h"
#include "alloc/interpose/next_of.h"
#include "alloc/os/memory.h"
#include "alloc/pages/page_heap.h"

namespace {

using rdmalloc::next_of;

static_assert(sizeof(rlimit) == sizeof(rlimit64),
              "the functions with 64 in their name are the same");
using Set = int (*)(__rlimit_resource_t, const rlimit*);
using Exchange = int (*)(pid_t, __rlimit_resource, const rlimit*, rlimit*);
constinit std::atomic<Set> next_setrlimit{nullptr}, next_setrlimit64{nullptr};
constinit std::atomic<Exchange> next_prlimit{nullptr}, next_prlimit64{nullptr};

RDMALLOC_FINDS(find_all) {
  next_of(next_setrlimit, "setrlimit");
  next_of(next_setrlimit64, "setrlimit64");
  next_of(next_prlimit, "prlimit");
  next_of(next_prlimit64, "prlimit64");
}

void give_up_beyond(std::uint64_t limit_bytes) {
  rdmalloc::page_heap_fit_limit();
  rdmalloc::caches_fit_limit(limit_bytes);
  rdmalloc::heaps_fit_limit(limit_bytes);
}

// After a limit was set by a call that returned `result`. `limit` may be NULL: it was asked for
// only.
int fit(int result, int resource, const rlimit* limit) {
  if (result != 0 || resource != RLIMIT_AS || limit == nullptr ||
      limit->rlim_cur == RLIM_INFINITY || !rdmalloc::is_initialised())
    return result;
  rdmalloc::fork_check();
  if (!rdmalloc::memory_is_own()) return result;  // the limit is the child's of a vfork() alone
  give_up_beyond(limit->rlim_cur);
  return result;
}

bool is_of_this_process(pid_t process) {
  return process == 0 || process == getpid();
}

int exchange(Exchange next, pid_t process, __rlimit_resource resource, const rlimit* limit,
             rlimit* before) {
  int result = next(process, resource, limit, before);
  if (!is_of_this_process(process)) return result;
  rlimit in_force;
  // The old limit may have been written where the new one stood.
  if (result == 0 && resource == RLIMIT_AS && limit != nullptr && before != nullptr &&
      next(process, resource, nullptr, &in_force) == 0)
    limit = &in_force;
  return fit(result, resource, limit);
}

}  // namespace

bool rdmalloc::fit_limit_set_past_us() {
  if (!is_initialised()) return false;
  fork_check();
  std::uint64_t limit_bytes = os::address_limit().bytes;
  if (std::uint64_t{page_heap_reserved()} << kSliceShift <= limit_bytes || !memory_is_own())
    return false;
  give_up_beyond(limit_bytes);
  return true;
}

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  return fit(next_of(next_setrlimit, "setrlimit")(resource, limit), resource, limit);
}
EXPORT int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
  auto* same = reinterpret_cast<const rlimit*>(limit);
  return fit(next_of(next_setrlimit64, "setrlimit64")(resource, same), resource, same);
}
EXPORT int prlimit(pid_t process, __rlimit_resource resource, const rlimit* limit,
                   rlimit* before) noexcept {
  return exchange(next_of(next_prlimit, "prlimit"), process, resource, limit, before);
}
EXPORT int prlimit64(pid_t process, __rlimit_resource resource, const rlimit64* limit,
                     rlimit64* before) noexcept {
  return exchange(next_of(next_prlimit64, "prlimit64"), process, resource,
                  reinterpret_cast<const rlimit*>(limit), reinterpret_cast<rlimit*>(before));
}
