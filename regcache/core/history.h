// Checked builds: what happened to ranges of memory lately, for the report of the page-frame check
// (page_frame_check.h). A ring of fixed length in our own data: noting an event takes no memory, no
// lock and no system call but the clock. What a child of fork reads of its parent's events is the
// parent's history, which is the child's too.
#pragma once

#include <cstdint>

namespace rdmalloc::regcache {

enum class Event : std::uint8_t {
  kRegistered,
  kDeregistered,
  kEvicted,
  kDroppedByPurge,
  kInvalidated,
  kPurgeAsked,
  kPurgeRefused,
  kPurged,
  kAdopted,
  kDisowned,
};

#if RDMALLOC_CHECKED
// `registrar`: whose registration, static text, or NULL.
void note(Event event, std::uintptr_t low, std::uintptr_t high, const char* registrar = nullptr,
          std::uint64_t generation = 0);
// Prints what is remembered of [low, high), oldest first.
void print_history(std::uintptr_t low, std::uintptr_t high);
// From where this thread called into the cache last.
void note_caller(const void* address);
#else
inline void note(Event, std::uintptr_t, std::uintptr_t, const char* = nullptr, std::uint64_t = 0) {}
inline void note_caller(const void*) {}
#endif

}  // namespace rdmalloc::regcache
