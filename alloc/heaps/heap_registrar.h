// Who registers the memory of heaps, seen from below: the allocator knows nothing of registration,
// so the registration cache, once it is in use, leaves a table of functions here. Create, grow and
// destroy call them, never malloc or free (I1), and no lock is held then (I2).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/pages/region_pages.h"

struct rdmalloc_domain;

namespace rdmalloc {

// What regions of a heap must be like (heap_regions.h).
struct RegionLimits {
  std::size_t most_bytes;  // of one: as much as every domain registers at once
  std::size_t alignment;   // of its address and its length, a power of two; a chunk or more
  std::uint32_t most;
  std::uint32_t node;  // the NUMA node of its pages plus 1; 0: any
  PageKind pages;
};

struct HeapRegistrar {
  // Round all that makes or unmakes something of a heap: 0 and *token, or -EAGAIN while registering
  // is stopped for a checkpoint; unmaking goes on then.
  int (*enter)(bool unmakes, std::uint64_t* token);
  void (*leave)(std::uint64_t token);
  // Takes a place for a heap, which is called by it from here on; never 0. `handle` names the heap
  // for ever. What is in *limits only becomes tighter. 0 or a negative errno.
  int (*begin)(std::uint64_t handle, rdmalloc_domain* const* domains, std::size_t domain_count,
               std::uint32_t access, RegionLimits* limits, std::uint32_t* place);
  // Registers the heap's next region with each of its domains. 0, or a negative errno with nothing
  // of this region registered, unless it sets one of these: `*is_kept`, a domain would not take
  // back what it had registered, so the memory must never be handed out again, as below;
  // `*is_held`, a caller has got what one domain registered, and the region is one of the heap's
  // until end().
  int (*add)(std::uint32_t place, std::uint64_t handle, std::uintptr_t base, std::size_t length,
             bool* is_kept, bool* is_held);
  // Deregisters the regions from the `first`-th on: all of them at the heap's end, or those of a
  // grow that failed. 0; or, with nothing changed, -EBUSY (a caller holds a registration of the
  // heap's; those of a grow stay the heap's then, without a block) or -EDEADLK. `*kept` has a bit
  // for each region whose memory must never be handed out again, since a device may still write
  // there.
  int (*end)(std::uint32_t place, std::uint64_t handle, std::uint32_t first, std::uint64_t* kept);
  // enter() or end() has failed, and the caller will not come back: calls rdmalloc_heap_destroy()
  // now and when it may succeed.
  void (*abandon)(std::uint32_t place, std::uint64_t handle);
  // Gives up the place of a heap that has no region any more.
  void (*give_up)(std::uint32_t place, std::uint64_t handle);
};

// Set once, and never taken away. Release, and acquire: the table is there.
inline constinit std::atomic<const HeapRegistrar*> heap_registrar{nullptr};

}  // namespace rdmalloc
