#include "bench/cores/caches.h"

#include <algorithm>
#include <cstdio>

namespace rdmalloc::bench {
namespace {

template <typename T>
T* zeroed(std::size_t count) {
  void* memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) {
    std::fprintf(stderr, "coherence: no memory for a table of %zu lines\n", count);
    std::_Exit(1);
  }
  return static_cast<T*>(memory);
}

}  // namespace

Caches::Caches(unsigned cores)
    : words_((cores + kBits - 1) / kBits),
      lines_(zeroed<std::uint64_t>(kPlaces)),
      holders_(zeroed<std::uint64_t>(kPlaces * words_)),
      modified_by_(zeroed<std::uint16_t>(kPlaces)) {}

// Open addressing. Line 0 is never mapped, so that 0 is a free place.
std::size_t Caches::place_of(std::uint64_t line) {
  const std::size_t first = (line * 0x9e3779b97f4a7c15u) >> (64 - kPlacesLog2);
  for (std::size_t probe = 0; probe < kProbes; ++probe) {
    const std::size_t place = (first + probe) % kPlaces;
    if (lines_[place] == line) return place;
    if (lines_[place] != 0) continue;
    lines_[place] = line;
    return place;
  }
  ++lost_;
  return kNowhere;
}

bool Caches::do_others_hold(std::size_t place, unsigned core) {
  const std::uint64_t* holders = holders_at(place);
  for (unsigned word = 0; word < words_; ++word) {
    const std::uint64_t own = word == core / kBits ? std::uint64_t{1} << core % kBits : 0;
    if ((holders[word] & ~own) != 0) return true;
  }
  return false;
}

Caches::Moved Caches::load(unsigned core, std::uint64_t line) {
  const std::size_t place = place_of(line);
  if (place == kNowhere) return Moved::nothing;
  std::uint64_t& word = holders_at(place)[core / kBits];
  const std::uint64_t own = std::uint64_t{1} << core % kBits;
  if ((word & own) != 0) return Moved::nothing;
  word |= own;
  const bool is_modified = modified_by_[place] != kClean;
  modified_by_[place] = kClean;  // shared from here on
  return is_modified ? Moved::by_load : Moved::nothing;
}

Caches::Moved Caches::store(unsigned core, std::uint64_t line) {
  const std::size_t place = place_of(line);
  if (place == kNowhere) return Moved::nothing;
  const bool moves = do_others_hold(place, core);
  std::uint64_t* holders = holders_at(place);
  std::fill(holders, holders + words_, 0);
  holders[core / kBits] = std::uint64_t{1} << core % kBits;
  modified_by_[place] = static_cast<std::uint16_t>(core + 1);
  return moves ? Moved::by_store : Moved::nothing;
}

}  // namespace rdmalloc::bench
