// What glibc's malloc.h has besides the family: reports and tuning.
#if RDMALLOC_OVERRIDE

#include <errno.h>
#include <malloc.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/api/statistics.h"

#define RDMALLOC_EXPORT __attribute__((visibility("default")))

namespace {

// How our counters answer glibc's questions: the arena is what was ever handed out, blocks in
// magazines count as in use (no better count is to be had without stopping the threads).
struct mallinfo2 report() {
  rdmalloc::Statistics s = rdmalloc::statistics();
  struct mallinfo2 info {};
  info.arena = s.mapped_bytes;
  info.ordblks = s.slab_spans;
  info.hblks = s.large_spans;
  info.hblkhd = 0;  // no block is a mapping of its own
  info.uordblks = s.live_bytes;
  info.fordblks = s.mapped_bytes > s.live_bytes ? s.mapped_bytes - s.live_bytes : 0;
  info.keepcost = s.dirty_bytes;
  return info;
}

}  // namespace

extern "C" {

// By way of the realloc() of whichever malloc serves the program, as glibc's does: a program may
// have a malloc of its own in front of ours, without this function.
RDMALLOC_EXPORT void* reallocarray(void* ptr, size_t count, size_t bytes) noexcept {
  std::size_t total = 0;
  if (!__builtin_mul_overflow(count, bytes, &total)) return realloc(ptr, total);
  errno = ENOMEM;
  return nullptr;
}

RDMALLOC_EXPORT struct mallinfo2 mallinfo2(void) noexcept {
  return report();
}

// The old struct has ints: what does not fit is cut, as glibc does.
RDMALLOC_EXPORT struct mallinfo mallinfo(void) noexcept {
  struct mallinfo2 wide = report();
  struct mallinfo info {};
  info.arena = static_cast<int>(wide.arena);
  info.ordblks = static_cast<int>(wide.ordblks);
  info.hblks = static_cast<int>(wide.hblks);
  info.uordblks = static_cast<int>(wide.uordblks);
  info.fordblks = static_cast<int>(wide.fordblks);
  info.keepcost = static_cast<int>(wide.keepcost);
  return info;
}

RDMALLOC_EXPORT void malloc_stats(void) noexcept {
  rdmalloc_stats_print(2, RDMALLOC_STATS_TEXT);
}

RDMALLOC_EXPORT int malloc_info(int options, FILE* stream) noexcept {
  if (options != 0) {
    errno = EINVAL;
    return -1;
  }
  rdmalloc::Statistics s = rdmalloc::statistics();
  int written = fprintf(stream,
                        "<malloc version=\"rdmalloc-%s\">\n"
                        "<total type=\"mapped\" size=\"%lu\"/>\n"
                        "<total type=\"used\" size=\"%lu\"/>\n"
                        "<total type=\"live\" size=\"%lu\"/>\n"
                        "<total type=\"cached\" size=\"%lu\"/>\n"
                        "<total type=\"dirty\" size=\"%lu\"/>\n"
                        "<total type=\"large\" count=\"%lu\"/>\n"
                        "<total type=\"slab\" count=\"%lu\"/>\n"
                        "<purge count=\"%lu\" size=\"%lu\" refused=\"%lu\"/>\n"
                        "</malloc>\n",
                        rdmalloc_version(), s.mapped_bytes, s.used_bytes, s.live_bytes,
                        s.cached_bytes, s.dirty_bytes, s.large_spans, s.slab_spans,
                        s.of_purges.purges, s.of_purges.purged_bytes, s.of_purges.refusals);
  return written < 0 ? -1 : 0;
}

// Accepted and without effect: glibc's parameters speak of things (brk top, mmap threshold) that
// rdmalloc does not have. 1 is glibc's "success", which callers check.
RDMALLOC_EXPORT int mallopt(int, int) noexcept {
  return 1;
}

}  // extern "C"

#endif
