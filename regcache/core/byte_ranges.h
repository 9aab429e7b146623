// A set of addresses: disjoint ranges by rising address, neighbours joined. Looked at off every
// hit. Zeroed memory is an empty set, and that is what a fork child has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/core/lock.h"

namespace rdmalloc::regcache {

class ByteRanges {
 public:
  struct Range {
    std::uintptr_t low, high;
  };
  // Whether all of [low, high) is in it.
  bool hold(std::uintptr_t low, std::uintptr_t high);
  // The first range that has anything of [low, high); false when there is none.
  bool find_first(std::uintptr_t low, std::uintptr_t high, Range* found);
  // 0 or -ENOMEM.
  int add(std::uintptr_t low, std::uintptr_t high);
  // -ENOENT: nothing of it was there; -ENOMEM: a range would have to be cut in two.
  int remove(std::uintptr_t low, std::uintptr_t high);
  void clear();
  std::size_t count();

 private:
  // The first range that ends at `address` or behind it.
  std::size_t first_ending_from(std::uintptr_t address) const;
  bool make_room();
  void replace(std::size_t first, std::size_t end, const Range* by, std::size_t count);

  Lock lock_;  // a leaf
  Range* ranges_ = nullptr;
  std::size_t count_ = 0;
  std::size_t room_ = 0;
};

}  // namespace rdmalloc::regcache
