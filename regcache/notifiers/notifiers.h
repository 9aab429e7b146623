// Who tells other caches of a purge, and how (docs/notifiers.md; DESIGN's tiers T0 and T1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// By which functions the libraries are known, whatever their files are called.
inline constexpr const char* kOpalFunction = "opal_mem_hooks_release_hook";
inline constexpr const char* kUcmFunction = "ucm_vm_munmap";
inline constexpr const char* kFabricFunction = "fi_version";

// Looks again which of the fabric libraries are loaded, after a dlopen. Takes the loader's lock: on
// a program's thread that is outside malloc.
void notifiers_rescan();
// Makes the purge thread where one of them is loaded: a program that uses a fabric may have one
// thread itself. At the start and after a dlopen; on a program's thread outside malloc, as
// purge_thread_start().
void notifiers_begin_purging();
// Round a dlclose. Before it: forgets functions that may be about to vanish; a library whose
// function a purge is inside of, still after `wait_ms`, is kept in memory instead. Until the end,
// which looks again, purges go through libc's madvise.
void notifiers_close_begin(int wait_ms);
void notifiers_close_end();

namespace detail {
extern std::atomic<bool> watches_foreign;
}
// Whether some library relies on us for memory that is not ours (I9).
inline bool notifiers_watch_foreign() {
  // Acquire: pairs with the store after that library's function was found.
  return detail::watches_foreign.load(std::memory_order_acquire);
}
// Foreign pages are about to go: tells those who rely on us. On the thread that unmaps them, no
// lock held, nothing allocated by us; the order is the caller's to keep, first this and then the
// kernel.
void notifiers_tell_foreign(std::uintptr_t base, std::size_t length);

// purge_hold(), counted.
void notifiers_hold(int hold_ms, int wait_ms);
// A library has just finished writing to libc's text.
void notifiers_note_patch();
// The first byte of libc's own madvise, whatever stands in front of it by symbol.
const unsigned char* libc_madvise();

}  // namespace rdmalloc
