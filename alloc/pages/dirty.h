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
// The same of new pages for a large block: the end of the huge page that they may end within is
// backed with them, and is to be given back in time also where nothing is ever freed.
void purge_note_new_pages();

}  // namespace rdmalloc
