#include "alloc/cache/depot.h"

#include "alloc/slabs/slab.h"

namespace rdmalloc {

constinit Pool<Magazine> magazines;

namespace {

struct alignas(64) Shelf {
  TaggedStack<Magazine> full;
  std::uint32_t tag_at_last_age = 0;  // purge turn only
};
constinit Shelf shelves[kClasses];

}  // namespace

bool depot_put(unsigned size_class, Magazine* magazine) {
  return shelves[size_class].full.push(magazines.objects(), magazines.index_of(magazine),
                                       class_info(size_class).depot_max);
}

Magazine* depot_take(unsigned size_class) {
  std::uint32_t index = shelves[size_class].full.pop(magazines.objects());
  return index == 0 ? nullptr : magazines.at(index);
}

bool depot_age(bool everything) {
  bool is_something_left = false;
  for (unsigned c = 1; c < kClasses; ++c) {
    Shelf& shelf = shelves[c];
    TaggedStack<Magazine>::Head head = shelf.full.head();
    // The tag counts pushes and pops: unchanged means idle.
    if (everything || head.tag == shelf.tag_at_last_age) {
      while (Magazine* magazine = depot_take(c)) {
        slab_give_back(c, magazine->slots, magazine->count);
        magazine->count = 0;
        magazines.free(magazine);
      }
      slab_trim(c);
      head = shelf.full.head();
    } else {
      is_something_left = true;
    }
    shelf.tag_at_last_age = head.tag;
  }
  return is_something_left;
}

std::uint64_t depot_blocks(unsigned size_class) {
  return std::uint64_t{shelves[size_class].full.head().count} * class_info(size_class).magazine_max;
}

}  // namespace rdmalloc
