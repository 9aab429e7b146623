// A set of addresses: disjoint ranges by rising address, neighbours joined, in a treap (tree.h): a
// change costs the logarithm of their number. Looked at off every hit. Zeroed memory is an empty
// set, and that is what a fork child has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/pool.h"
#include "regcache/core/tree.h"

namespace rdmalloc::regcache {

struct ByteRange {
  std::uintptr_t low, high;
  struct Links {
    ByteRange* left;
    ByteRange* right;
  } links;

  static ByteRange*& free_link(ByteRange* range) { return range->links.left; }
};
static_assert(sizeof(ByteRange) == 32);

struct ByteRangeOrder {
  using Record = ByteRange;
  using Link = ByteRange*;
  static ByteRange::Links& links(ByteRange* range) { return range->links; }
  static bool is_before(const ByteRange* a, const ByteRange* b) { return a->low < b->low; }
  static void update(ByteRange*) {}
};

class ByteRanges {
 public:
  struct Range {
    std::uintptr_t low, high;
  };
  // Whether all of [low, high) is in it.
  bool hold(std::uintptr_t low, std::uintptr_t high);
  // The first range that has anything of [low, high); false when there is none.
  bool find_first(std::uintptr_t low, std::uintptr_t high, Range* found);
  // 0 or -ENOMEM. `memory`: the set's own.
  int add(PoolMemory& memory, std::uintptr_t low, std::uintptr_t high);
  // -ENOENT: nothing of it was there; -ENOMEM, with nothing changed: a range would have to be cut
  // in two.
  int remove(PoolMemory& memory, std::uintptr_t low, std::uintptr_t high);
  void clear();
  std::size_t count();
  // Ranges that were looked at on ways down so far: what each call costs.
  std::uint64_t steps();

 private:
  // The first range that ends at `address` or behind it.
  ByteRange* first_ending_from(std::uintptr_t address);
  void enter(ByteRange* range, std::uintptr_t low, std::uintptr_t high);
  void take_out(ByteRange* range);

  Lock lock_;  // before the pool's
  Tree<ByteRangeOrder> tree_;
  std::size_t count_;
  std::uint64_t steps_;
  Pool<ByteRange> pool_;
};

}  // namespace rdmalloc::regcache
