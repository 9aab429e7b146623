// Whether the places of buffers are kept for buffers (page_heap.h).
#pragma once

namespace rdmalloc {

// From now on buffers leave retained spans: there is something in the process that may register
// memory, an observer, a library of a fabric, or a program that calls rdmalloc_init(). Before, no
// place is worth more than another; what is free is joined, and taken where it fits best. The
// program malloc-large takes 274 MiB at its peak, with places 332. For ever; any thread.
void page_heap_keep_places();

}  // namespace rdmalloc
