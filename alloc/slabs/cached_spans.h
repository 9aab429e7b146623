// Spans that threads cache: slabs of one block each, of the classes from kFirstSpanClass on
// (decisions/0014). The block is out as long as the slab is one: the program has it, a magazine or
// the depot. So it has no free bit, stands on no list, and no lock of a class is taken for it.
//
//   of each such slab:  free_blocks == 0;  its bitmap says nothing
#pragma once

#include <cstdint>

namespace rdmalloc {

// Takes up to `wanted` spans out of the page heap, of which the one freed last comes last. Returns
// how many; 0: no memory.
std::uint32_t cached_spans_take(unsigned shard, unsigned size_class, void** blocks,
                                std::uint32_t wanted);
// Gives spans of the class to the page heap. Aborts with the address when one is none, or is free.
void cached_spans_give_back(unsigned size_class, void* const* blocks, std::uint32_t count);

}  // namespace rdmalloc
