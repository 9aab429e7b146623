// Notifying other caches of a purge (docs/notifiers.md; docs/design.md, section 7, tiers T0 and
// T1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// The functions by which a library is recognised, whatever the name of its file.
inline constexpr const char* kOpalFunction = "opal_mem_hooks_release_hook";
inline constexpr const char* kUcmFunction = "ucm_vm_munmap";
inline constexpr const char* kFabricFunction = "fi_version";
// What has no cache that is notified, but a program that has it may register memory.
inline constexpr const char* kMpiFunction = "MPI_Init";
inline constexpr const char* kVerbsFunction = "ibv_open_device";

// Looks again which of the fabric libraries are loaded, after a dlopen. Takes the loader's lock: on
// a program's thread that is outside malloc.
void notifiers_rescan();
// Starts the purge thread, and keeps the places of buffers, if one of them is loaded: a program
// that uses a fabric may have only one thread of its own. At the start and after a dlopen; on a
// program's thread outside malloc, as purge_thread_start().
void notifiers_begin_purging();
// Before and after a dlclose; they nest, and several threads may be between them. The begin forgets
// functions that may vanish; if a purge is still inside a library's function after `wait_ms`, it
// keeps the library in memory instead. Nothing is attached and purges go through libc's madvise
// until the last end, which looks again.
void notifiers_close_begin(int wait_ms);
void notifiers_close_end();
// interpose/dlopen.cc's, which calls the two. A library whose dlclose passes by it is kept in
// memory once it is attached.
void notifiers_set_dlclose(int (*ours)(void*));

namespace detail {
extern std::atomic<bool> watches_foreign;
}
// Whether some library relies on rdmalloc for foreign memory (I9).
inline bool notifiers_watch_foreign() {
  // Acquire: pairs with the store after that library's function was found.
  return detail::watches_foreign.load(std::memory_order_acquire);
}
// Notifies the libraries that rely on rdmalloc that foreign pages are about to go. On the thread
// that unmaps them, with no lock held; rdmalloc allocates nothing. The caller calls this first and
// then the kernel.
void notifiers_notify_foreign(std::uintptr_t base, std::size_t length);

// While another library may write to libc's text. A component's own start takes milliseconds after
// its dlopen, which the next one extends; making a page writable, a copy of some bytes and making
// it read-only again take less.
inline constexpr int kTextHoldMs = 100;
// For a purge under way. Bounded: the caller may hold a fabric's lock that the purge waits for, and
// such a purge is past libc's text.
inline constexpr int kTextWaitMs = 50;
// purge_hold() for that long, counted.
void notifiers_hold();
// A library has just finished writing to libc's text.
void notifiers_note_patch();
// The first byte of libc's own madvise, also if another definition stands in front of it by symbol.
const unsigned char* libc_madvise();

}  // namespace rdmalloc
