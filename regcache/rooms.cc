// The rooms above the core (core/rooms.h).
#include "regcache/core/rooms.h"

#include "regcache/checkpoint/control.h"
#include "regcache/heaps/registered_heap.h"
#include "regcache/pools/buffer_pool.h"

namespace rdmalloc::regcache {

constinit const Holder* const holders[kHolders] = {&heap_holder, &pool_holder};

// Nothing calls it but a constructor beside it: of an archive, a program that opens domains would
// be linked without.
[[gnu::used]] constexpr auto* kStartOfControl = control_begin;

}  // namespace rdmalloc::regcache
