// The C family, as rdmalloc_* in every build and under the standard names where we override.
//
// Every function leaves errno alone unless it fails, free() always does (POSIX 2024).

#include <errno.h>
#include <malloc.h>
#include <rdmalloc/rdmalloc.h>
#include <stdlib.h>

#include <cstdint>

#include "alloc/api/allocate.h"
#include "alloc/core/options.h"
#include "alloc/core/report.h"
#include "alloc/os/os.h"
#include "alloc/os/rounding.h"

using namespace rdmalloc;

namespace {

bool is_power_of_two(std::size_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

}  // namespace

extern "C" {

void* rdmalloc_malloc(size_t bytes) {
  return allocate(bytes);
}

void rdmalloc_free(void* ptr) {
  release(ptr);
}

void* rdmalloc_calloc(size_t count, size_t bytes) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, bytes, &total)) return out_of_memory();
  return allocate_zeroed(total);
}

void* rdmalloc_realloc(void* ptr, size_t bytes) {
  if (ptr == nullptr) return rdmalloc_malloc(bytes);
  if (bytes == 0) {
    // glibc's answer, which programs rely on: freed, NULL.
    release(ptr);
    return nullptr;
  }
  return reallocate(ptr, bytes);
}

void* rdmalloc_reallocarray(void* ptr, size_t count, size_t bytes) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, bytes, &total)) return out_of_memory();
  return rdmalloc_realloc(ptr, total);
}

// C23: the size is what the block was asked for. The class map knows better, so it is not needed;
// a checked build compares.
void rdmalloc_free_sized(void* ptr, [[maybe_unused]] size_t bytes) {
#if RDMALLOC_CHECKED
  if (ptr != nullptr && usable_bytes(ptr) < bytes)
    report_fatal_address("free_sized() with a size larger than the block", ptr);
#endif
  release(ptr);
}
void rdmalloc_free_aligned_sized(void* ptr, size_t, size_t bytes) {
  rdmalloc_free_sized(ptr, bytes);
}

int rdmalloc_posix_memalign(void** out, size_t alignment, size_t bytes) {
  if (!is_power_of_two(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  // The answer is the return value (POSIX); ENOMEM is in errno too, where programs look for it, for
  // glibc leaves it there.
  void* block = allocate_aligned(alignment, bytes);
  if (block == nullptr) return ENOMEM;
  *out = block;
  return 0;
}

void* rdmalloc_aligned_alloc(size_t alignment, size_t bytes) {
  if (!is_power_of_two(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return allocate_aligned(alignment, bytes);
}

void* rdmalloc_memalign(size_t alignment, size_t bytes) {
  // glibc rounds an alignment that is no power of two up to one, if there is one.
  if (alignment > SIZE_MAX / 2 + 1) {
    errno = EINVAL;
    return nullptr;
  }
  std::size_t rounded = 16;
  while (rounded < alignment) rounded *= 2;
  return allocate_aligned(rounded, bytes);
}

void* rdmalloc_valloc(size_t bytes) {
  return allocate_aligned(os::page_bytes(), bytes);
}

void* rdmalloc_pvalloc(size_t bytes) {
  std::size_t page = os::page_bytes();
  if (bytes > kLargestRequest - page) return out_of_memory();
  return allocate_aligned(page, bytes == 0 ? page : round_up(bytes, page));
}

size_t rdmalloc_malloc_usable_size(void* ptr) {
  return ptr == nullptr ? 0 : usable_bytes(ptr);
}

int rdmalloc_malloc_trim(size_t keep_bytes) {
  if (options().purge == PurgeMode::kOff) return 0;
  return rdmalloc_purge(keep_bytes) > 0 ? 1 : 0;
}

}  // extern "C"

#if RDMALLOC_OVERRIDE
// The standard names are further symbols for the same code, not calls of it. `__libc_*` are names
// of old glibc that some programs still link.
#define RDMALLOC_ALIAS(of) __attribute__((alias(#of), visibility("default"), used))
extern "C" {
#pragma GCC diagnostic push
#if !defined(__clang__)  // which has no such warning, and warns of the name
#pragma GCC diagnostic ignored "-Wmissing-attributes"
#endif
void* malloc(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_malloc);
void free(void*) noexcept RDMALLOC_ALIAS(rdmalloc_free);
void cfree(void*) noexcept RDMALLOC_ALIAS(rdmalloc_free);
void* calloc(size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_calloc);
void* realloc(void*, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_realloc);
int posix_memalign(void**, size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_posix_memalign);
void* aligned_alloc(size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_aligned_alloc);
void* memalign(size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_memalign);
void* valloc(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_valloc);
void* pvalloc(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_pvalloc);
size_t malloc_usable_size(void*) noexcept RDMALLOC_ALIAS(rdmalloc_malloc_usable_size);
int malloc_trim(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_malloc_trim);
void free_sized(void*, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_free_sized);
void free_aligned_sized(void*, size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_free_aligned_sized);
void* __libc_malloc(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_malloc);
void __libc_free(void*) noexcept RDMALLOC_ALIAS(rdmalloc_free);
void __libc_cfree(void*) noexcept RDMALLOC_ALIAS(rdmalloc_free);
void* __libc_calloc(size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_calloc);
void* __libc_realloc(void*, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_realloc);
void* __libc_memalign(size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_memalign);
void* __libc_valloc(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_valloc);
void* __libc_pvalloc(size_t) noexcept RDMALLOC_ALIAS(rdmalloc_pvalloc);
int __posix_memalign(void**, size_t, size_t) noexcept RDMALLOC_ALIAS(rdmalloc_posix_memalign);
#pragma GCC diagnostic pop
}

// A note beside them, by which `rdmalloc run` knows a program whose malloc is ours
// (tools/rdmalloc/elf_file.h): strip leaves it, and librdmalloc_prefixed.a has none.
namespace {
constexpr std::uint32_t kNoteType = 1;
struct Note {
  std::uint32_t name_bytes, description_bytes, type;
  char name[12];
};
[[gnu::section(".note.rdmalloc"), gnu::used]] alignas(4) constexpr Note kMallocIsOurs = {
    sizeof "rdmalloc", 0, kNoteType, "rdmalloc"};
}  // namespace
#endif
