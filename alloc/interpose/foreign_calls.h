// Foreign calls over our pages: a caller outside malloc that unmaps, moves, empties or protects
// memory of malloc's makes every cached registration over it wrong, and no cache is told in the
// order of I3. A checked build stops at such a call; a release build lets it through
// (docs/behaviours.md says what happens then). The check sees calls of libc's functions, and no raw
// system calls.
#pragma once

#include <cstddef>

namespace rdmalloc {

#if RDMALLOC_CHECKED
inline constexpr bool kChecksForeignCalls = true;
// Aborts when [address, address + length) touches memory of ours, unless the calling thread holds
// the purge turn: our own purges go by libc's madvise too.
void check_foreign_call(const char* call, const void* address, std::size_t length);
#else
inline constexpr bool kChecksForeignCalls = false;
inline void check_foreign_call(const char*, const void*, std::size_t) {}
#endif

}  // namespace rdmalloc
