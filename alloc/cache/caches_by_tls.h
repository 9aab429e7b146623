// Caches whose threads ended without a word, found by the address of the thread's variables.
//
// The key destructor that ends a cache is not called where a thread's first malloc comes after it,
// in the last round of destructors, nor often enough in the round before. libc then gives the
// memory of that thread, and with it the address of our thread-local variables (TLS), to another: a
// thread that finds a cache in use at its own address knows that its owner is gone. So there are no
// more such caches than threads lived at once.
//
// A table of hints by hash of the address. Each is a cache's index, and is believed only where that
// cache names the same address. A cache that no slot names is not found; that takes as many threads
// at once as there are slots.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

// `Caches`: a Pool of what has `thread_id` (0: not in use; acquire and release) and `tls`.
template <typename Caches>
class CachesByTls {
 public:
  struct Place {
    std::uint32_t slot;  // for note()
    std::uint32_t left;  // a cache in use that names this address; 0: none
  };
  Place find(const Caches& caches, std::uintptr_t tls) const {
    Place place = {kSlots, 0};
    for (std::uint32_t i = 0; i < kProbes; ++i) {
      std::uint32_t slot = (first_of(tls) + i) % kSlots;
      std::uint32_t index = slots_[slot].load(std::memory_order_relaxed);
      bool is_never_written = index == 0;  // nor is any behind it
      if (is_never_written || is_free(caches, index, slot)) {
        if (place.slot == kSlots) place.slot = slot;
        if (is_never_written) break;
      } else if (caches.at(index)->tls.load(std::memory_order_relaxed) == tls) {
        return {slot, index};
      }
    }
    if (place.slot == kSlots) place.slot = first_of(tls);
    return place;
  }

  // A cache has begun, whose `tls` is that of find() and whose `thread_id` is not 0.
  void note(Place place, std::uint32_t index) {
    slots_[place.slot].store(index, std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t kSlotBits = 12;
  static constexpr std::uint32_t kSlots = 1u << kSlotBits;
  static constexpr std::uint32_t kProbes = 8;

  static std::uint32_t first_of(std::uintptr_t tls) {
    std::uint64_t hash = std::uint64_t{tls} * 0x9E3779B97F4A7C15u;
    return static_cast<std::uint32_t>(hash >> (64 - kSlotBits));
  }
  // Whether the cache that a slot names is not in use, or would not be looked for there.
  static bool is_free(const Caches& caches, std::uint32_t index, std::uint32_t slot) {
    const auto& cache = *caches.at(index);
    if (cache.thread_id.load(std::memory_order_acquire) == 0) return true;
    return (slot - first_of(cache.tls.load(std::memory_order_relaxed))) % kSlots >= kProbes;
  }

  std::atomic<std::uint32_t> slots_[kSlots] = {};
};

}  // namespace rdmalloc
