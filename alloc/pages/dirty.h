// Dirty memory: free, and not given back to the kernel yet. How much of it may stay, and for how
// long, and notifying the purge thread that there is more.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

inline constexpr std::uint64_t kNotLookedUp = UINT64_MAX;

// Relaxed: settings. But max_bytes is released where it is set, after the flag that says so, and
// acquired where the default would take its place (limits.cc).
struct DirtyLimits {
  std::atomic<std::uint64_t> decay_ms{5000};
  std::atomic<std::uint64_t> max_bytes{kNotLookedUp};  // the ceiling
  // What spans in use and free ones may take together: RDMALLOC_LIMIT, or most of a small cgroup.
  std::atomic<std::uint64_t> backed_bytes{UINT64_MAX};
};
extern constinit DirtyLimits dirty_limits;

std::uint64_t dirty_bytes();
// Dirty bytes that may stay: the ceiling, and what the limit leaves beside the spans in use. Until
// the ceiling is looked up, as many as that waits for.
std::uint64_t dirty_ceiling_bytes(bool* is_limit);

// Some memory became dirty. Called by allocating threads with no lock held: wakes the purge thread
// when it sleeps for want of work or when a ceiling is passed. Where there is none, nothing
// happens: no thread is made inside malloc or free.
void purge_note_dirty();

namespace detail {
extern constinit std::atomic<bool> has_new_rest;
void note_new_rest();
}  // namespace detail
// Under a page heap's lock, once it is counted: an allocation backs more than it takes, the rest of
// a huge page. That is dirty, or lies behind all spans.
inline void rest_is_new() {
  // Release: pairs with the acquire in note_new_rest(): the rest is counted.
  detail::has_new_rest.store(true, std::memory_order_release);
}
// Called by the thread that allocated, or grew a block, with no lock held: as purge_note_dirty(),
// so that a rest is given back in time also where nothing is ever freed.
inline void purge_note_new_pages() {
  // Relaxed: the caller's own rest, or another's whose thread comes by here too.
  if (detail::has_new_rest.load(std::memory_order_relaxed)) [[unlikely]]
    detail::note_new_rest();
}

}  // namespace rdmalloc
