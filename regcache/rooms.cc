// The rooms above the core (core/rooms.h).
#include "regcache/core/rooms.h"

#include "regcache/heaps/registered_heap.h"
#include "regcache/pools/buffer_pool.h"

namespace rdmalloc::regcache {

constinit const Holder* const holders[kHolders] = {&heap_holder, &pool_holder};

}  // namespace rdmalloc::regcache
