// What stub_fabric.h asks of an allocator, answered by the real one.
#include "tests/unit/regcache/fake_allocator.h"

namespace fake {

unsigned page_generation(const void* address) {
  rdmalloc_range range = {};
  range.size = sizeof range;
  return rdmalloc_range_of(address, &range) == 0 ? static_cast<unsigned>(range.generation) : 0;
}

}  // namespace fake
