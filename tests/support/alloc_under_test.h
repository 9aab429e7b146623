// SPDX-License-Identifier: BSD-3-Clause
//
// The allocator under test, by one set of names. A test written against `aut::` is compiled twice:
//
//   RDMALLOC_TEST_PREFIXED=1   aut::malloc is rdmalloc_malloc: the prefixed library, linked; the
//                              test program itself keeps libc's malloc. Works under sanitizers.
//   RDMALLOC_TEST_PREFIXED=0   aut::malloc is malloc: whatever the process runs on. Under
//                              LD_PRELOAD=librdmalloc.so that is us, and the whole test program
//                              with us; with no preload it is libc, which shows that a test asks
//                              for what malloc really promises.
//
// Tests are compiled with -fno-builtin, or the compiler would remove a malloc whose block is only
// freed, and would know that a freed pointer can't be compared.
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <rdmalloc/rdmalloc.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>

#ifndef RDMALLOC_TEST_PREFIXED
#error "compile with RDMALLOC_TEST_PREFIXED=0 or 1"
#endif

// Both are C23 and newer than the C library of Debian 12. Weak: a process whose malloc lacks them
// has a null address here.
#if !RDMALLOC_TEST_PREFIXED
extern "C" __attribute__((weak)) void free_sized(void* ptr, size_t bytes);
extern "C" __attribute__((weak)) void free_aligned_sized(void* ptr, size_t alignment, size_t bytes);
#endif

namespace aut {

#if RDMALLOC_TEST_PREFIXED
constexpr bool kPrefixed = true;
inline void* malloc(size_t bytes) {
  return rdmalloc_malloc(bytes);
}
inline void* calloc(size_t count, size_t bytes) {
  return rdmalloc_calloc(count, bytes);
}
inline void* realloc(void* ptr, size_t bytes) {
  return rdmalloc_realloc(ptr, bytes);
}
inline void* reallocarray(void* ptr, size_t count, size_t bytes) {
  return rdmalloc_reallocarray(ptr, count, bytes);
}
inline void free(void* ptr) {
  rdmalloc_free(ptr);
}
inline bool has_free_sized() {
  return true;
}
inline void free_sized(void* ptr, size_t bytes) {
  rdmalloc_free_sized(ptr, bytes);
}
inline void free_aligned_sized(void* ptr, size_t alignment, size_t bytes) {
  rdmalloc_free_aligned_sized(ptr, alignment, bytes);
}
inline int posix_memalign(void** out, size_t alignment, size_t bytes) {
  return rdmalloc_posix_memalign(out, alignment, bytes);
}
inline void* aligned_alloc(size_t alignment, size_t bytes) {
  return rdmalloc_aligned_alloc(alignment, bytes);
}
inline void* memalign(size_t alignment, size_t bytes) {
  return rdmalloc_memalign(alignment, bytes);
}
inline void* valloc(size_t bytes) {
  return rdmalloc_valloc(bytes);
}
inline void* pvalloc(size_t bytes) {
  return rdmalloc_pvalloc(bytes);
}
inline size_t usable_size(void* ptr) {
  return rdmalloc_malloc_usable_size(ptr);
}
inline int trim(size_t keep_bytes) {
  return rdmalloc_malloc_trim(keep_bytes);
}
inline int64_t purge(size_t keep_bytes) {
  return rdmalloc_purge(keep_bytes);
}
#else
constexpr bool kPrefixed = false;
inline void* malloc(size_t bytes) {
  return ::malloc(bytes);
}
inline void* calloc(size_t count, size_t bytes) {
  return ::calloc(count, bytes);
}
inline void* realloc(void* ptr, size_t bytes) {
  return ::realloc(ptr, bytes);
}
inline void* reallocarray(void* ptr, size_t count, size_t bytes) {
  return ::reallocarray(ptr, count, bytes);
}
inline void free(void* ptr) {
  ::free(ptr);
}
inline bool has_free_sized() {
  return ::free_sized != nullptr && ::free_aligned_sized != nullptr;
}
inline void free_sized(void* ptr, size_t bytes) {
  ::free_sized(ptr, bytes);
}
inline void free_aligned_sized(void* ptr, size_t alignment, size_t bytes) {
  ::free_aligned_sized(ptr, alignment, bytes);
}
inline int posix_memalign(void** out, size_t alignment, size_t bytes) {
  return ::posix_memalign(out, alignment, bytes);
}
inline void* aligned_alloc(size_t alignment, size_t bytes) {
  return ::aligned_alloc(alignment, bytes);
}
inline void* memalign(size_t alignment, size_t bytes) {
  return ::memalign(alignment, bytes);
}
inline void* valloc(size_t bytes) {
  return ::valloc(bytes);
}
inline void* pvalloc(size_t bytes) {
  return ::pvalloc(bytes);
}
inline size_t usable_size(void* ptr) {
  return ::malloc_usable_size(ptr);
}
inline int trim(size_t keep_bytes) {
  return ::malloc_trim(keep_bytes);
}
// -ENOSYS on another malloc than ours.
inline int64_t purge(size_t keep_bytes) {
  auto* purge = reinterpret_cast<decltype(&rdmalloc_purge)>(dlsym(RTLD_DEFAULT, "rdmalloc_purge"));
  return purge == nullptr ? -ENOSYS : purge(keep_bytes);
}
#endif

// Hides a value from the optimiser, so that "obviously too large" sizes reach the allocator.
template <typename T>
inline T opaque(T value) {
  asm volatile("" : "+r"(value));
  return value;
}

inline bool is_aligned(const void* ptr, size_t alignment) {
  return (reinterpret_cast<uintptr_t>(ptr) & (alignment - 1)) == 0;
}

}  // namespace aut
