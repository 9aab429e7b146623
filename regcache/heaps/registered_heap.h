// Registered heaps: which registrations a heap of the user has. The allocator makes such a heap of
// regions (alloc/heaps/heap_regions.h) and tells us of each through HeapRegistrar; we register it
// with each of the heap's domains, one registration for each, and hold them until the heap ends.
//
//    region 0  |  region 1  |  region 2          keys[region * domain_count + domain]
//
// They are of Kind::kHeap: found by reg_key and reg_get in any block of the heap, with all of the
// heap's rights, since no address of the range belongs to anything else (I13); never evicted, never
// purged. A fork child finds all of this empty (I11).
#pragma once

#include <rdmalloc/regcache.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/domain.h"
#include "regcache/core/rooms.h"

namespace rdmalloc::regcache {

inline constexpr std::size_t kMostRegisteredHeaps = 64;
// Registrations of one heap: regions times domains.
inline constexpr std::size_t kMostHeapKeys = 256;

struct RegisteredHeap {
  // Of the heap; never used again. 0: the place is free. Release when the place is taken, acquire
  // where keys are asked for.
  std::atomic<std::uint64_t> handle;
  std::atomic<bool> is_abandoned;  // to be destroyed as soon as it can be (core/abandoned.h)
  std::uint32_t access;
  std::uint32_t domain_count;
  // Regions whose keys are there. Written by one thread at a time; release and acquire.
  std::atomic<std::uint32_t> region_count;
  std::uint8_t domains[kMostDomains];  // indices
  struct {
    std::uintptr_t base;
    std::size_t length;
    // Of a grow that failed while a caller held one of its registrations: the heap's until the
    // heap's end, without a block. So its keys are listed nowhere, and a resume registers it no
    // more. Written before the allocator counts the region in.
    bool is_left_over;
  } regions[kMostHeapKeys];
  Registration* registrations[kMostHeapKeys];
  rdmalloc_key keys[kMostHeapKeys];
};

struct RegisteredHeaps {
  Lock lock;  // taking a place; a leaf
  RegisteredHeap places[kMostRegisteredHeaps];
};
extern constinit WipedObject<RegisteredHeaps> registered_heaps;

// What the core and a checkpoint call (core/rooms.h).
extern const Holder heap_holder;
// What the allocator calls.
extern const HeapRegistrar heap_registrations;

// What is known of a heap; NULL in a child of the process that made it. Good while the heap is
// there.
const RegisteredHeap* registered_heap(std::uint32_t place, std::uint64_t handle);

}  // namespace rdmalloc::regcache
