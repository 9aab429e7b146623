// One word for each 64 KiB slice of the arena: may a registration begin here, may a purge? (I3)
//
//   0              idle
//   1 .. 2^31 - 1  that many registrations are being made over the slice, in any domain
//   kPurging       its pages are on their way back to the kernel
//
// Each side takes its words by compare-and-swap and undoes what it took when it meets the other.
// No side waits: the registering side fails or takes a narrower range, the purging side refuses.
// Deregistering needs no word: a registration stays in its domain's tree until it is really gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::regcache {

inline constexpr std::uint32_t kPurging = 0x80000000u;

// The slices that [low, high) touches, as [first, end).
struct SliceRange {
  std::size_t first;
  std::size_t end;
};

// The pages of a slab in use that are being purged: of at most one, since purges come one at a
// time. A registration of a block beside them need not wait, and one of a block on them must fail:
// it is free, whatever its caller thinks.
class PartInPurge {
 public:
  // Before the words say so.
  void begin(std::uintptr_t low, std::uintptr_t high);
  // After they say so no more.
  void end();
  // Whether any of [low, high) is in it. After the words have said that their slices are.
  bool touches(std::uintptr_t low, std::uintptr_t high) const;

 private:
  std::atomic<std::uint64_t> word_{0};  // the first page's number and how many; 0: none
};

class SliceWords {
 public:
  void use(std::atomic<std::uint32_t>* words) { words_ = words; }

  // Counts a registration in. False, with nothing changed, when a slice is being purged.
  bool try_begin_registering(SliceRange slices);
  void end_registering(SliceRange slices);
  // False, with nothing changed, when a registration is being made over a slice.
  bool try_begin_purging(SliceRange slices);
  void end_purging(SliceRange slices);

 private:
  std::atomic<std::uint32_t>* words_ = nullptr;
};

}  // namespace rdmalloc::regcache
