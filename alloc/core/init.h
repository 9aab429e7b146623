// Initialisation: at the first allocation, on whatever thread and however early that is.
//
// The work is in process/init.cc, above all rooms that it sets up, and is bound by the linker: it
// runs before any constructor could have left a pointer to it.
#pragma once

#include <atomic>

namespace rdmalloc {

namespace detail {
extern std::atomic<bool> initialised;
bool initialise();
}  // namespace detail

// Whether the arena is there: a caller has allocated, or asked for something that needs it.
inline bool is_initialised() {
  // Acquire: pairs with the release at the end of initialise(); the arena is there.
  return detail::initialised.load(std::memory_order_acquire);
}

// Whether the allocator works; sets it up on the first call. False only when the kernel refuses
// even the smallest arena: the caller answers ENOMEM and the next call tries again (I10).
inline bool ensure_initialised() {
  if (is_initialised()) [[likely]]
    return true;
  return detail::initialise();
}

// Only the settings, for constructors of ours: a program that never allocates gets no arena.
void ensure_settings();

}  // namespace rdmalloc
