// mlock(2) as a registrar.
//
// mlock does not nest, so the process's domains keep one sorted array of segments, each with the
// number of registrations over it: bounds of registrations cut segments, so that each lies in all
// of its registrations entirely. Segments are found by bisection; n registrations make at most 2n
// of them, for two that no registration divides any more are one again.
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/registrar_mlock.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"
#include "regcache/registrars/of_process.h"

namespace rdmalloc::registrars {
namespace {

struct Segment {
  std::uintptr_t base;
  std::uintptr_t end;
  std::size_t count;
  std::size_t begin_here, end_here;  // of these registrations, at its bounds
};

struct Locked {
  pthread_mutex_t lock;
  Segment* segments;  // sorted, disjoint
  std::size_t count;
  std::size_t room;

  void release() { free(segments); }
};
using LockedOfProcess = OfProcess<Locked>;

// Index of the first segment that ends after `address`.
std::size_t find(const Locked& locked, std::uintptr_t address) {
  std::size_t low = 0, high = locked.count;
  while (low < high) {
    std::size_t middle = low + (high - low) / 2;
    if (locked.segments[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Room for `more` segments, taken before anything changes, so that no step has to be undone for
// want of it.
bool has_room(Locked& locked, std::size_t more) {
  if (locked.count + more <= locked.room) return true;
  std::size_t room = 2 * (locked.count + more);
  void* grown =
      should_fail("registrar_memory") ? nullptr : realloc(locked.segments, room * sizeof(Segment));
  if (grown == nullptr) return false;
  locked.segments = static_cast<Segment*>(grown);
  locked.room = room;
  return true;
}

void insert(Locked& locked, std::size_t at, Segment segment) {
  memmove(locked.segments + at + 1, locked.segments + at, (locked.count - at) * sizeof(Segment));
  locked.segments[at] = segment;
  ++locked.count;
}

// Cuts the segment that holds `address`, if one does, so that a segment begins there.
void cut(Locked& locked, std::uintptr_t address) {
  std::size_t at = find(locked, address);
  if (at == locked.count || locked.segments[at].base >= address) return;
  Segment upper = locked.segments[at];
  locked.segments[at].end = upper.base = address;
  locked.segments[at].end_here = upper.begin_here = 0;
  insert(locked, at + 1, upper);
}

// Undoes a cut at `address`, unless a registration begins or ends there.
void mend(Locked& locked, std::uintptr_t address) {
  std::size_t at = find(locked, address);
  if (at == 0 || at == locked.count || locked.segments[at].base != address) return;
  Segment &lower = locked.segments[at - 1], &upper = locked.segments[at];
  if (lower.end != address || lower.end_here != 0 || upper.begin_here != 0) return;
  lower.end = upper.end;
  lower.end_here = upper.end_here;
  memmove(&upper, &upper + 1, (locked.count - at - 1) * sizeof(Segment));
  --locked.count;
}

int lock_pages(std::uintptr_t base, std::uintptr_t end) {
  if (should_fail("mlock")) return -ENOMEM;
  if (mlock(reinterpret_cast<void*>(base), end - base) == 0) return 0;
  // EAGAIN: "some or all pages could not be locked", as good as no memory: eviction may help.
  return errno == EAGAIN ? -ENOMEM : -errno;
}

// The kernel stops at a page that is not there: foreign memory that its owner unmapped first. Those
// behind it are unlocked by halves, until so many calls in a row have met such a page: where all is
// unmapped, as is usual then, each page would take two.
constexpr int kMostInVain = 64;

int unlock_halves(std::uintptr_t base, std::uintptr_t end, int* in_vain) {
  if (should_fail("munlock")) return -EAGAIN;
  if (munlock(reinterpret_cast<void*>(base), end - base) == 0) return *in_vain = 0;
  if (errno != ENOMEM) return -errno;
  auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  std::uintptr_t middle = base + (end - base) / page / 2 * page;
  if (++*in_vain > kMostInVain || middle == base) return 0;
  int error = unlock_halves(base, middle, in_vain);
  int other = unlock_halves(middle, end, in_vain);
  return error != 0 ? error : other;
}

int unlock_pages(std::uintptr_t base, std::uintptr_t end) {
  int in_vain = 0;
  return unlock_halves(base, end, &in_vain);
}

// Counts [base, end) down; segments whose count reaches 0 are unlocked and go.
int count_down(Locked& locked, std::uintptr_t base, std::uintptr_t end) {
  int error = 0;
  std::size_t at = find(locked, base);
  std::size_t kept = at;
  for (; at < locked.count && locked.segments[at].base < end; ++at) {
    Segment segment = locked.segments[at];
    if (--segment.count != 0) {
      locked.segments[kept++] = segment;
    } else if (int failed = unlock_pages(segment.base, segment.end)) {
      error = failed;
    }
  }
  memmove(locked.segments + kept, locked.segments + at, (locked.count - at) * sizeof(Segment));
  locked.count -= at - kept;
  return error;
}

// Counts [base, end) up, locking it. After a failure everything is as it was.
int count_up(Locked& locked, std::uintptr_t base, std::uintptr_t end) {
  std::uintptr_t reached = base;
  int error = 0, undone = 0;
  for (std::size_t at = find(locked, base); reached < end && error == 0; ++at) {
    std::uintptr_t next = at < locked.count ? locked.segments[at].base : end;
    if (next > end) next = end;
    // Also where it was locked before: of foreign memory it may be another mapping by now, whose
    // earlier registration ends later.
    std::uintptr_t locked_end = reached < next ? next : locked.segments[at].end;
    error = lock_pages(reached, locked_end);
    // The kernel has locked the pages up to the one that it could not lock. Those of a segment
    // stay: they are another registration's.
    if (error != 0 && reached < next) undone = unlock_pages(reached, next);
    if (error != 0) break;
    if (reached < next) insert(locked, at, {reached, next, 0, 0, 0});
    ++locked.segments[at].count;
    reached = locked.segments[at].end;
  }
  if (error != 0 && (count_down(locked, base, reached) != 0 || undone != 0))
    error = -ENOTRECOVERABLE;
  return error;
}

int mlock_register(void* context, void* addr, std::size_t length, std::uint32_t access,
                   rdmalloc_key*) {
  auto& locked = *static_cast<Locked*>(context);
  if ((access & RDMALLOC_ACCESS_REMOTE) != 0) return -ENOTSUP;  // there is no device
  auto base = reinterpret_cast<std::uintptr_t>(addr), end = base + length;
  pthread_mutex_lock(&locked.lock);
  // Two cuts, and a gap beside each segment in the range at most.
  std::size_t touched = find(locked, end) - find(locked, base) + 2;
  int error = has_room(locked, 2 + touched + 1) ? 0 : -ENOMEM;
  if (error == 0) {
    cut(locked, base);
    cut(locked, end);
    error = count_up(locked, base, end);
    if (error == 0) {
      ++locked.segments[find(locked, base)].begin_here;
      ++locked.segments[find(locked, end) - 1].end_here;
    } else {
      mend(locked, base);
      mend(locked, end);
    }
  }
  pthread_mutex_unlock(&locked.lock);
  return error;
}

int mlock_deregister(void* context, void* addr, std::size_t length, const rdmalloc_key*) {
  auto& locked = *static_cast<Locked*>(context);
  auto base = reinterpret_cast<std::uintptr_t>(addr), end = base + length;
  pthread_mutex_lock(&locked.lock);
  std::size_t first = find(locked, base), behind = find(locked, end);
  if (first < behind) {
    --locked.segments[first].begin_here;
    --locked.segments[behind - 1].end_here;
  }
  int error = count_down(locked, base, end);
  mend(locked, base);
  mend(locked, end);
  pthread_mutex_unlock(&locked.lock);
  return error;
}

void mlock_close(void* context) {
  LockedOfProcess::give(static_cast<Locked*>(context));
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_domain_open_mlock(const rdmalloc_domain_attr* attr,
                                                       rdmalloc_domain** domain) {
  KeepErrno keep;
  Locked* locked = LockedOfProcess::take();
  if (locked == nullptr) return -ENOMEM;
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "mlock";
  // Not REOPEN: a checkpoint has no trouble with locked pages, but does not unlock any either.
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS | RDMALLOC_REGISTRAR_LOCKS;
  ops.register_ = mlock_register;
  ops.deregister = mlock_deregister;
  ops.close = mlock_close;
  int error = rdmalloc_domain_open(&ops, locked, attr, domain);
  if (error != 0) mlock_close(locked);
  return error;
}
