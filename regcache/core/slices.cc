#include "regcache/core/slices.h"

namespace rdmalloc::regcache {
namespace {

// Addresses have 48 bits: 36 of a page's number, and 28 of how many are left. A slab has fewer.
constexpr int kPageShift = 12, kCountBits = 28;
constexpr std::uint64_t kMostPages = (std::uint64_t{1} << kCountBits) - 1;

}  // namespace

void PartInPurge::begin(std::uintptr_t low, std::uintptr_t high) {
  std::uint64_t pages = (high - low) >> kPageShift;
  if (pages > kMostPages) pages = kMostPages;
  word_.store(std::uint64_t{low >> kPageShift} << kCountBits | pages, std::memory_order_relaxed);
}

void PartInPurge::end() {
  word_.store(0, std::memory_order_relaxed);
}

bool PartInPurge::touches(std::uintptr_t low, std::uintptr_t high) const {
  std::uint64_t word = word_.load(std::memory_order_relaxed);
  std::uintptr_t begin = word >> kCountBits << kPageShift;
  std::uintptr_t end = begin + ((word & kMostPages) << kPageShift);
  return low < end && high > begin;
}

bool SliceWords::try_begin_registering(SliceRange slices) {
  for (std::size_t slice = slices.first; slice != slices.end; ++slice) {
    std::uint32_t seen = words_[slice].load(std::memory_order_relaxed);
    do {
      if (seen == kPurging) {
        // Pairs with the release in try_begin_purging(): the caller finds which pages.
        std::atomic_thread_fence(std::memory_order_acquire);
        end_registering({slices.first, slice});
        return false;
      }
      // Acquire: pairs with the release in end_purging(), so that what we register are the new
      // pages.
    } while (!words_[slice].compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                                  std::memory_order_relaxed));
  }
  return true;
}

void SliceWords::end_registering(SliceRange slices) {
  // Release: a purge that finds the word idle finds our registration in its domain's tree.
  for (std::size_t slice = slices.first; slice != slices.end; ++slice)
    words_[slice].fetch_sub(1, std::memory_order_release);
}

bool SliceWords::try_begin_purging(SliceRange slices) {
  for (std::size_t slice = slices.first; slice != slices.end; ++slice) {
    std::uint32_t idle = 0;
    // Acquire: pairs with the release in end_registering(). Release: with the fence in
    // try_begin_registering().
    if (!words_[slice].compare_exchange_strong(idle, kPurging, std::memory_order_acq_rel,
                                               std::memory_order_relaxed)) {
      end_purging({slices.first, slice});
      return false;
    }
  }
  return true;
}

void SliceWords::end_purging(SliceRange slices) {
  for (std::size_t slice = slices.first; slice != slices.end; ++slice)
    words_[slice].store(0, std::memory_order_release);
}

}  // namespace rdmalloc::regcache
