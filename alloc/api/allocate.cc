#include "alloc/api/allocate.h"

#include <errno.h>

#include <cstring>

#include "alloc/core/report.h"
#include "alloc/large/large.h"
#include "alloc/pages/arena.h"

namespace rdmalloc {
namespace {

// The class whose blocks are aligned to `alignment`: slabs are aligned to their size, so any class
// whose block size is a multiple of it. 0 when only a large span will do.
unsigned class_for(std::size_t alignment, std::size_t bytes) {
  std::size_t wanted = bytes == 0 ? alignment : (bytes + alignment - 1) & ~(alignment - 1);
  if (alignment > kSmallMax || wanted > kSmallMax) return 0;
  for (unsigned c = class_of(wanted); c < kClasses; ++c)
    if (block_bytes_of(c) % alignment == 0) return c;
  return 0;
}

// Whether the block stays where it is. Shrinking keeps one that is at least half used (moving it
// would cost a copy now and again when it grows back), or whose class is the smallest there is for
// it.
bool is_good_enough(std::size_t usable, std::size_t bytes) {
  if (bytes > usable) return false;
  return bytes >= usable / 2 || (bytes <= kSmallMax && block_bytes_of(class_of(bytes)) == usable);
}

void* move_to(void* block, std::size_t usable, std::size_t bytes) {
  // A large block that grows has done so before, and will again.
  bool keeps_growing = usable > kSmallMax && bytes > usable && bytes <= kLargestRequest;
  void* moved = keeps_growing ? large_allocate_growing(bytes) : allocate(bytes);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, block, usable < bytes ? usable : bytes);
  release(block);
  return moved;
}

}  // namespace

void* out_of_memory() {
  errno = ENOMEM;
  return nullptr;
}

void* allocate_slow(std::size_t bytes) {
  if (bytes <= kSmallMax) return cache_allocate_slow(class_of(bytes));
  bool is_zero = false;
  return bytes > kLargestRequest ? out_of_memory() : large_allocate(bytes, 1, &is_zero);
}

void* allocate_aligned(std::size_t alignment, std::size_t bytes) {
  if (bytes > kLargestRequest || alignment > kLargestRequest) return out_of_memory();
  if (alignment <= 16) return allocate(bytes);
  if (unsigned size_class = class_for(alignment, bytes)) return cache_allocate(size_class);
  bool is_zero = false;
  return large_allocate(bytes, alignment, &is_zero);
}

void* allocate_zeroed(std::size_t bytes) {
  if (bytes <= kSmallMax) {
    void* block = allocate(bytes);
    if (block != nullptr) std::memset(block, 0, bytes);
    return block;
  }
  if (bytes > kLargestRequest) return out_of_memory();
  bool is_zero = false;
  void* block = large_allocate(bytes, 1, &is_zero);
  if (block != nullptr && !is_zero) std::memset(block, 0, bytes);
  return block;
}

std::size_t usable_bytes(const void* block) {
  auto address = reinterpret_cast<std::uintptr_t>(block);
  if (!arena.holds(address)) return 0;
  unsigned size_class = arena.class_at(arena.slice_of(address));
  return size_class == kLargeClass ? large_bytes(block) : block_bytes_of(size_class);
}

void* reallocate(void* block, std::size_t bytes) {
  std::size_t usable = usable_bytes(block);
  if (usable == 0)
    report_fatal_address("realloc() of an address that malloc never returned, or of a freed block",
                         block);
  if (is_good_enough(usable, bytes)) return block;
  bool is_large = usable > kSmallMax;
  if (is_large && bytes > kSmallMax && bytes <= kLargestRequest && large_resize(block, bytes))
    return block;
  return move_to(block, usable, bytes);
}

}  // namespace rdmalloc
