#include "regcache/core/slices.h"

namespace rdmalloc::regcache {

bool SliceWords::try_begin_registering(SliceRange slices) {
  for (std::size_t slice = slices.first; slice != slices.end; ++slice) {
    std::uint32_t seen = words_[slice].load(std::memory_order_relaxed);
    do {
      if (seen == kPurging) {
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
    // Acquire: pairs with the release in end_registering().
    if (!words_[slice].compare_exchange_strong(idle, kPurging, std::memory_order_acquire,
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
