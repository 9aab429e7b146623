// Lists of free spans, by size and by age. Links live in the span metadata. All calls under the
// page heap's lock.
#pragma once

#include <bit>
#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

// Which slices a span may begin at: multiples of so many (a power of two), by their index; or, with
// the arena's bias, by their address. The arena is aligned to a chunk, so up to that both are one.
struct Alignment {
  std::uint32_t slices;
  std::uint32_t bias = 0;

  constexpr Alignment(std::uint32_t of_index) : slices(of_index) {}
  constexpr Alignment(std::uint32_t of_address, std::uint64_t arena_begin)
      : slices(of_address), bias(static_cast<std::uint32_t>(arena_begin & (of_address - 1))) {}

  // The first such slice from there on.
  constexpr std::uint64_t up(SliceIndex slice) const {
    return ((std::uint64_t{slice} + bias + slices - 1) & ~std::uint64_t{slices - 1}) - bias;
  }
  constexpr bool is_of(SliceIndex slice) const { return up(slice) == slice; }
};

// First slice in [slice, slice + slices) where `wanted` aligned slices fit; 0 when they don't.
constexpr SliceIndex fit_in(SliceIndex slice, std::uint32_t slices, std::uint32_t wanted,
                            Alignment alignment) {
  std::uint64_t aligned = alignment.up(slice);
  return aligned - slice + wanted <= slices ? static_cast<SliceIndex>(aligned) : 0;
}

// Free spans of one family (retained, dirty or clean), or of a heap's regions, in bins by length:
// one for each up to 64 slices (4 MiB), then sixteen to a doubling.
class FreeSpans {
 public:
  void insert(SliceIndex slice, std::uint32_t slices);
  void remove(SliceIndex slice, std::uint32_t slices);
  // `node`, here and below: only spans whose pages are that node's.
  static constexpr unsigned kAnyNode = ~0u;
  // The smallest span that `wanted` aligned slices fit in; 0 when there is none. Of equal ones the
  // lowest, but of retained ones the one left last; as far as a short look tells. kSmallPages:
  // where no huge page is touched.
  enum class Where { kAnywhere, kSmallPages };
  SliceIndex find_best(std::uint32_t wanted, Alignment alignment, Where where = Where::kAnywhere,
                       unsigned node = kAnyNode) const;
  // A span that `wanted` aligned slices fit in within its longest buffer, as far as a short look
  // tells: where that buffer had at most `near` slices, of the shortest such spans the one freed
  // last; else the one used last of those where it had at most `most`. 0: there is none.
  SliceIndex find_latest(std::uint32_t wanted, Alignment alignment, std::uint32_t near,
                         std::uint64_t most, unsigned node = kAnyNode) const;
  // Whether there may be a span of `least` slices; false: there is none.
  bool has(std::uint32_t least) const;
  // Of the longest spans the one with the longest buffer; 0 when there is none.
  SliceIndex find_longest_buffer() const;
  void clear() { *this = FreeSpans{}; }

 private:
  static constexpr std::uint32_t kExactBins = 64;
  static constexpr std::uint32_t kBinsPerDoubling = 16;
  static constexpr std::uint32_t kBins = kExactBins + kBinsPerDoubling * 26 + 1;
  static constexpr std::uint32_t kWords = (kBins + 63) / 64;

  static constexpr std::uint32_t bin_of(std::uint32_t slices) {
    if (slices <= kExactBins) return slices;
    std::uint32_t exponent = static_cast<std::uint32_t>(std::bit_width(slices)) - 1;  // >= 6
    return kExactBins + (exponent - 6) * kBinsPerDoubling + (slices >> (exponent - 4)) - 16 + 1;
  }
  // The next bin from `bin` on that holds a span; kBins when none does.
  std::uint32_t next_nonempty(std::uint32_t bin) const;
  SliceIndex best_in_bin(std::uint32_t bin, std::uint32_t wanted, Alignment alignment, Where where,
                         unsigned node) const;

  SliceIndex head_[kBins] = {};
  std::uint64_t nonempty_[kWords] = {};
};

// Free spans that are backed, oldest first (Span::freed_ms, which does not change meanwhile).
class AgeList {
 public:
  // Enters a span at its age, looking from `near` on (a span of the list whose age is about the
  // same; 0: from the youngest one of its period). One that would come after many younger ones
  // becomes as young as those: its pages are purged later, by the decay time at most, and by a
  // period where that is known.
  void insert(SliceIndex slice, SliceIndex near);
  // Returns the next older span, or the next younger one: a hint for what takes its place.
  SliceIndex remove(SliceIndex slice);
  SliceIndex oldest() const { return oldest_; }
  SliceIndex youngest() const { return youngest_; }
  void clear() { *this = AgeList{}; }
  // Whether each period's span is one of them.
  bool is_valid() const;

 private:
  // 16 s in periods of 256 ms: more than the default decay time.
  static constexpr std::uint32_t kPeriods = 64, kPeriodShift = 8;

  static std::uint32_t period_of(SliceIndex slice);
  // The youngest span that is no younger than the period of `slice`, as far as is known; else 0.
  SliceIndex find_near(SliceIndex slice) const;
  // Of a span just entered.
  void note_period(SliceIndex slice);

  SliceIndex oldest_ = 0;
  SliceIndex youngest_ = 0;
  // By period, modulo how many there are: the youngest span that was freed in it. The bit says
  // whether one is known. A segment that changes hands brings spans of any age: without this each
  // of them passed 64 others, two fifths of what threads with thousands of blocks looked at.
  std::uint64_t known_ = 0;
  SliceIndex youngest_of_[kPeriods] = {};
};

}  // namespace rdmalloc
