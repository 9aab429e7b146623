// Others' hands on our pages. Whoever unmaps, moves, empties or protects memory of malloc's by a
// call of his own makes every cached registration over it wrong, and no cache is told in the order
// of I3. A checked build stops at such a call; a release build lets it through (docs/behaviours.md
// says what happens then). Seen are calls of libc's functions; raw system calls are not.
#pragma once

#include <cstddef>

namespace rdmalloc {

#if RDMALLOC_CHECKED
inline constexpr bool kChecksHands = true;
// Aborts when [address, address + length) touches memory of ours, unless the calling thread holds
// the purge turn: our own purges go by libc's madvise too.
void check_hands_off(const char* call, const void* address, std::size_t length);
#else
inline constexpr bool kChecksHands = false;
inline void check_hands_off(const char*, const void*, std::size_t) {}
#endif

}  // namespace rdmalloc
