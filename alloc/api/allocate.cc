#include "alloc/api/allocate.h"

#include <errno.h>

#include <cstring>

#include "alloc/cache/bin_table.h"
#include "alloc/core/fork.h"
#include "alloc/core/report.h"
#include "alloc/heaps/heap_blocks.h"
#include "alloc/large/large.h"
#include "alloc/pages/arena.h"

namespace rdmalloc {
namespace {

// Whether the block stays where it is. Shrinking keeps one that is at least half used (moving it
// would cost a copy now and again when it grows back), or whose class is the smallest there is for
// it. Inlined in any case: GCC put half of it in a function of its own where it thought little of
// the rest, and realloc of 16 B to 1 KiB took 28 ns for 21.
[[gnu::always_inline]] inline bool is_good_enough(std::size_t usable, std::size_t bytes) {
  if (bytes > usable) return false;
  return bytes >= usable / 2 || (bytes <= kCachedMax && block_bytes_of(class_of(bytes)) == usable);
}

void* move_to(void* block, std::size_t usable, void* moved, std::size_t bytes) {
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, block, usable < bytes ? usable : bytes);
  release(block);
  return moved;
}

// For a block that shrinks where the thread's cache has none that is shorter: it stays where it is
// if there is no memory, as programs do not expect that to fail. errno is as before then.
[[gnu::cold, gnu::noinline]] void* allocate_to_shrink(std::size_t bytes) {
  int saved = errno;
  void* moved = allocate_slow(bytes);
  if (moved == nullptr) errno = saved;
  return moved;
}

// A cached span of so many bytes becomes a large block when it grows, with room behind it.
constexpr std::size_t kGrowingBytes = 2 * kSliceBytes;

// A small block that is too small, or less than half used. Out of line: realloc saves no register
// where the block stays.
[[gnu::noinline]] void* reallocate_small(void* block, std::size_t usable, std::size_t bytes) {
  if (is_good_enough(usable, bytes)) return block;
  bool shrinks = bytes <= usable;
  // Long ones that grow once do so again, and are not to be copied from class to class.
  if (!shrinks && usable >= kGrowingBytes)
    return move_to(block, usable, large_allocate_growing(bytes), bytes);
  void* moved = try_allocate(bytes);
  if (moved == nullptr) [[unlikely]] {
    moved = shrinks ? allocate_to_shrink(bytes) : allocate_slow(bytes);
    if (moved == nullptr) return shrinks ? block : nullptr;
  }
  return move_to(block, usable, moved, bytes);
}

// What the class map says of the address; 0 when it is not ours.
unsigned class_of_address(const void* block) {
  auto address = reinterpret_cast<std::uintptr_t>(block);
  return arena.holds(address) ? arena.class_at(arena.slice_of(address)) : 0;
}

[[noreturn]] void report_no_block(const void* block) {
  report_fatal_address("realloc() of an address that malloc never returned, or of a freed block",
                       block);
}

// Of blocks that are spans, or of a heap. Out of line: most calls need none of this.
[[gnu::noinline]] std::size_t unclassed_bytes(const void* block) {
  return is_of_heap(block) ? heap_block_bytes(block) : large_bytes(block);
}
[[gnu::noinline]] void* reallocate_unclassed(void* block, std::size_t bytes, unsigned size_class) {
  if (size_class == kHeapClass) return heap_block_resize(block, bytes);
  std::size_t usable = large_bytes(block);
  if (usable == 0) report_no_block(block);
  if (is_good_enough(usable, bytes)) return block;
  bool stays_large = bytes > kSmallMax && bytes <= kLargestRequest;
  if (stays_large && large_resize(block, bytes)) return block;
  // A large block that grows has done so before, and will again.
  int saved = errno;
  void* moved = stays_large && bytes > usable ? large_allocate_growing(bytes) : allocate(bytes);
  // Not both beside each other; but what was taken back for it may do for one, and a block that
  // shrinks can always stay.
  bool can_stay = stays_large || bytes <= usable;
  if (moved == nullptr && can_stay && large_resize(block, bytes == 0 ? 1 : bytes)) {
    errno = saved;
    return block;
  }
  return move_to(block, usable, moved, bytes);
}

// Writes zeroes to a block of up to kZeroedHere bytes; to 16 at least, which each block has. From
// both ends, so that most sizes meet the same branches. Called for these, libc's memset took calloc
// of one size from 6 ns to 13 on a Xeon (docs/peers.md).
constexpr std::size_t kZeroedHere = 256;
inline void write_zeroes(char* block, std::size_t bytes) {
  char* end = block + bytes;
  if (bytes <= 32) {
    std::memset(block, 0, 16);
    std::memset(bytes < 16 ? block : end - 16, 0, 16);
    return;
  }
  std::memset(block, 0, 32);
  std::memset(end - 32, 0, 32);
  if (bytes <= 64) return;
  std::memset(block + 32, 0, 32);
  std::memset(end - 64, 0, 32);
  if (bytes <= 128) return;
  std::memset(block + 64, 0, 64);
  std::memset(end - 128, 0, 64);
}

// Whether the thread keeps a large block of that length (cache/long_block.h), as one that may hold
// no spans does.
bool keeps_long(std::size_t bytes) {
  const ThreadCache& cache = *detail::this_cache;
  return cache.long_slices == slices_for(bytes) &&
         cache.long_block.load(std::memory_order_relaxed) != 0;
}

}  // namespace

void* out_of_memory() {
  errno = ENOMEM;
  return nullptr;
}

void* allocate_slow(std::size_t bytes) {
  if (bytes <= kSmallMax) return cache_allocate_slow(serving_class_of(bytes), bytes);
  if (bytes <= kCachedMax && !keeps_long(bytes))
    if (void* block = cache_allocate_span(span_class_of(bytes))) return block;
  return bytes > kLargestRequest ? out_of_memory() : large_allocate(bytes, 1, nullptr);
}

void* allocate_aligned_slow(std::size_t alignment, std::size_t bytes) {
  if (bytes > kLargestRequest || alignment > kLargestRequest) return out_of_memory();
  if (alignment <= 16) return allocate(bytes);
  if (alignment <= kSmallMax && bytes <= kSmallMax) {
    std::size_t room = bytes == 0 ? alignment : aligned_bytes_of(alignment, bytes);
    return cache_allocate(serving_class_of(room), room);
  }
  if (alignment <= kSliceBytes && bytes > kSmallMax) return allocate(bytes);
  return large_allocate(bytes, alignment, nullptr);
}

void* allocate_zeroed(std::size_t bytes) {
  if (bytes <= kSmallMax) {
    void* block = allocate(bytes);
    if (block == nullptr) return nullptr;
    if (bytes > kZeroedHere) return std::memset(block, 0, bytes);
    write_zeroes(static_cast<char*>(block), bytes);
    return block;
  }
  if (bytes > kLargestRequest) return out_of_memory();
  bool is_zero = false;
  // Where the thread has none, pages that read as zero are better.
  void* block = bytes <= kCachedMax ? cache_try_allocate_span(span_class_of(bytes)) : nullptr;
  if (block == nullptr) block = large_allocate(bytes, 1, &is_zero);
  if (block != nullptr && !is_zero) std::memset(block, 0, bytes);
  return block;
}

std::size_t usable_bytes(const void* block) {
  auto address = reinterpret_cast<std::uintptr_t>(block);
  if (!arena.holds(address)) return 0;
  unsigned size_class = arena.class_at(arena.slice_of(address));
  return size_class >= kLargeClass ? unclassed_bytes(block) : class_info(size_class).block_bytes;
}

void* reallocate(void* block, std::size_t bytes) {
  unsigned size_class = class_of_address(block);
  if (size_class >= kLargeClass) return reallocate_unclassed(block, bytes, size_class);
  std::size_t usable = class_info(size_class).block_bytes;
  if (usable == 0) report_no_block(block);
  if (bytes <= usable && bytes >= usable / 2) [[likely]]
    return block;
  return reallocate_small(block, usable, bytes);
}

[[gnu::noinline]] static void release_other(void* block, unsigned size_class) {
  if (size_class != 0 && size_class != kLargeClass) return cache_free_slow(block, size_class);
  fork_check();
  large_free(block);
}

void release_slow(void* block, unsigned size_class) noexcept {
  // For a heap's block this is the common way: it is not to save registers that it does not use.
  size_class == kHeapClass ? heap_block_free(block) : release_other(block, size_class);
}

}  // namespace rdmalloc
