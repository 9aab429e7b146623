// In librdmalloc.so only: a program that locks its memory. The kernel counts what is reserved and
// not used against RLIMIT_MEMLOCK: with the arena's terabyte it refuses mlockall(MCL_CURRENT) to
// all but root. And MCL_FUTURE alone would leave unlocked what malloc takes later from a
// reservation made before. So the rest of it is given up first, and made anew as it is needed.
#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/heaps/heap.h"
#include "alloc/interpose/next_of.h"
#include "alloc/pages/page_heap.h"

namespace {

constinit std::atomic<int (*)(int)> next_mlockall{nullptr};

RDMALLOC_FINDS(find_it) {
  rdmalloc::next_of(next_mlockall, "mlockall");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int mlockall(int flags) noexcept {
  auto lock_all = rdmalloc::next_of(next_mlockall, "mlockall");
  if (!rdmalloc::is_initialised()) return lock_all(flags);
  rdmalloc::fork_check();
  if (!rdmalloc::memory_is_own()) return lock_all(flags);
  rdmalloc::page_heap_fit_limit();
  int saved = errno;
  int result = lock_all(flags);
  rlimit limit;
  if (result == 0 || errno != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return result;
  // The windows of what caches are made of are a GiB more, and those of heaps 76 MiB.
  rdmalloc::caches_fit_limit(limit.rlim_cur);
  rdmalloc::heaps_fit_limit(limit.rlim_cur);
  errno = saved;
  return lock_all(flags);
}
