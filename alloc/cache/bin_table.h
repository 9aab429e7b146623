// From a size to its bin, for the fast paths.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/cache/magazine.h"
#include "alloc/core/size_class.h"
#include "alloc/os/sanitizers.h"

namespace rdmalloc {

// Where the bin for so many bytes lies, in words of 8 bytes from a thread's first bin. A table for
// all cached sizes, since a branch between kinds of classes is mispredicted where sizes come mixed.
// With a table up to 256 bytes larson took a sixth longer, and alloc-test a twentieth. With one up
// to 4 KiB, 64 live blocks of 2 to 6 KiB took 13 ns for 7, of 64 B to 64 KiB 11 for 6; with one up
// to 64 KiB, 16 live blocks of 32 to 128 KiB took 12 ns for 6.
//
// 0 is the bin of class 0, always empty, which sends the caller to the slow path: for 0 bytes, for
// all sizes before the initialisation, and for spans until a thread takes a second one of their
// length. So the table's pages for spans are backed only where they serve.
inline constexpr std::size_t kStepMax = 262144;  // the table's end; it has steps of 8 bytes
static_assert(kStepMax == kCachedMax);
struct BinOffsets {
  std::uint8_t of[kStepMax / 8 + 1];
};
static_assert(kBins * sizeof(Bin) / 8 <= UINT8_MAX);
namespace detail {
// Relaxed, where threads run: a step that is not seen yet sends a malloc to the slow path.
extern constinit BinOffsets bin_offsets;
}  // namespace detail
[[gnu::always_inline]] inline std::size_t bin_offset_of(std::size_t bytes) {
  std::uint8_t& offset = detail::bin_offsets.of[(bytes + 7) / 8];
  // A byte is read whole; said to the compiler as well, calloc took an instruction more.
  if (os::kThreadSanitizer)
    return std::atomic_ref<std::uint8_t>(offset).load(std::memory_order_relaxed);
  return offset;
}
// No class ends within a step: all sizes of one are of the class of its last.
constexpr bool steps_are_right(std::size_t first, std::size_t last) {
  for (std::size_t bytes = first; bytes <= last; bytes += 8)
    if (class_of(bytes - 7) != class_of(bytes)) return false;
  return true;
}
// In parts, since Clang stops after 2^20 steps.
static_assert(steps_are_right(8, kSmallMax / 2) && steps_are_right(kSmallMax / 2, kSmallMax));
static_assert(steps_are_right(kSmallMax, kSmallMax * 3) &&
              steps_are_right(kSmallMax * 3, kStepMax));

// Enters all sizes of slabs. Called once at initialisation.
void bin_table_init();

// The class that serves for sizes of `size_class` while classes are coarse (coarse_classes.h):
// above 128 bytes every second one, four to a doubling, as jemalloc and mimalloc have them. Its
// blocks are no less aligned.
constexpr unsigned coarse_class_for(unsigned size_class) {
  if (size_class <= class_of(128) || size_class > kSmallClasses) return size_class;
  return (size_class + 1) & ~1u;
}
static_assert([] {
  for (unsigned c = 1; c <= kSmallClasses; ++c) {
    std::uint32_t bytes = block_bytes_of(c), coarse = block_bytes_of(coarse_class_for(c));
    if (coarse < bytes || (coarse & (0 - coarse)) < (bytes & (0 - bytes))) return false;
    if (coarse_class_for(coarse_class_for(c)) != coarse_class_for(c)) return false;
  }
  return true;
}());
// Enters the sizes of slabs again, by coarse classes or each by its own. Any thread, one at a time.
// A malloc meanwhile finds either class, and both serve.
void bin_table_enter_small(bool are_coarse);
// The class that a size up to kSmallMax is served by now.
inline unsigned serving_class_of(std::size_t bytes) {
  std::size_t offset = bin_offset_of(bytes);
  // None before the initialisation.
  if (offset == 0) [[unlikely]]
    return class_of(bytes);
  return static_cast<unsigned>(offset * 8 / sizeof(Bin));
}

namespace detail {
// The last step of a class; of class 0 the one of 0 bytes.
inline std::uint8_t& last_step_of(unsigned size_class) {
  return bin_offsets.of[block_bytes_of(size_class) / 8];
}
}  // namespace detail
inline bool bin_table_has(unsigned size_class) {
  return std::atomic_ref<std::uint8_t>(detail::last_step_of(size_class))
             .load(std::memory_order_relaxed) != 0;
}
// Enters a length of spans, unless there are several nodes: the fast path does not ask where a
// block's pages are. Any thread.
void bin_table_enter_span(unsigned size_class);
// The steps of spans go: of the one thread that has learned that there are several nodes.
void bin_table_note_nodes();

}  // namespace rdmalloc
