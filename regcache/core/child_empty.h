// Memory that reads as zero in a child of fork, which is how a child gets an empty cache (I11): the
// kernel wipes it (MADV_WIPEONFORK, Linux 4.14), or, where it can't, a fork handler of ours does.
//
// Everything the cache knows lies in such memory: tables, words, records, the state itself. Zero is
// everywhere the value that means "nothing": no slot filled, no lock held, no domain open. What
// must survive in the child is only where the mappings are, so that it uses them again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc::regcache {

// Maps `length` zeroed bytes, lazily backed, never given back. 0 or -ENOMEM. Any thread.
int map_child_empty(std::size_t length, std::uintptr_t* base);
// The same for what will be used from its begin to its end: on huge pages where it fills them, so
// that 100,000 records cost no miss of the TLB each.
int map_child_empty_dense(std::size_t length, std::uintptr_t* base);

}  // namespace rdmalloc::regcache
