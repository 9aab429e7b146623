// Blocks that live beside those that are timed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "bench/support/blocks.h"
#include "bench/support/mapped.h"

namespace rdmalloc::bench {

// No row can come out of a run that ran out of memory. _Exit: the other threads wait for this one.
inline void* must_have(void* block, std::size_t bytes) {
  if (block != nullptr) return block;
  std::fprintf(stderr, "latency_worker: no memory for a block of %zu bytes\n", bytes);
  std::_Exit(1);
}

// Live blocks of 16 B to 64 KiB, each doubling equally likely: some 6 MiB, more than a core's own
// caches hold.
struct MixedSet {
  static constexpr std::size_t kDoublings = 12;
  std::array<void*, 1024> blocks;

  // Frees a random block and allocates another in its place.
  void replace_one(Random& random) {
    const std::uint64_t number = random.next();
    const std::size_t least = std::size_t{16} << (number >> 32u) % kDoublings;
    const std::size_t bytes = least + (number >> 40u) % least;
    void*& block = blocks[static_cast<std::uint32_t>(number) % blocks.size()];
    std::free(block);
    block = must_have(std::malloc(bytes), bytes);
    touch_pages(block, bytes);  // the page faults are then not the next call's
  }
  void fill(Random& random) {
    for (std::size_t i = 0; i < 8 * blocks.size(); ++i) replace_one(random);
  }
  void empty() {
    for (void*& block : blocks) {
      std::free(block);
      block = nullptr;
    }
  }
};

}  // namespace rdmalloc::bench
