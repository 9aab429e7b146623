// SPDX-License-Identifier: BSD-3-Clause
//
// The hostile fabric (docs/design.md, "How it is proved"): a registration cache with the habits
// that make real ones hang. One plain mutex; held while it registers, and it allocates and frees
// its nodes under it; its notification, by which it hears that memory goes away, takes the same
// mutex. It hears of madvise, munmap and mremap because the program it is linked into overrides
// those symbols of libc (hostile_hooks.cc), as real ones do by patching libc's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hostile {

// Registers a range (a no-op when it is cached) with the mutex held throughout. `under_lock` runs
// under it too: what a program's progress engine does inside a fabric call.
void register_memory(void* addr, size_t length, const std::function<void()>& under_lock);

// Memory goes away: drops what is cached over it. Takes the mutex; may allocate and free.
void notify(void* addr, size_t length);

// Whether any registration touches the range.
bool touches_registered(const void* addr, size_t length);

uint64_t registrations();  // really made, not found
uint64_t notifications();  // calls of notify()
// Threads now inside notify() and before its end: waiting for the mutex, mostly.
int notifiers_inside();
// The same, or inside touches_registered().
int observers_inside();

}  // namespace hostile
