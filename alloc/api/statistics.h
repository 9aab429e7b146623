// One consistent-enough picture of the allocator's counters, taken without stopping a thread.
#pragma once

#include <cstdint>
#include <span>

#include "alloc/heaps/heap.h"
#include "alloc/purge/purge.h"

namespace rdmalloc {

struct Statistics {
  std::uint64_t arena_bytes;      // address space of the arena
  std::uint64_t mapped_bytes;     // below the frontier: ever part of a span
  std::uint64_t used_bytes;       // spans in use
  std::uint64_t live_bytes;       // blocks in use or in a magazine
  std::uint64_t slab_free_bytes;  // free blocks in slabs
  std::uint64_t depot_bytes;      // free blocks in the depot
  std::uint64_t cached_bytes;     // what threads' magazines may hold
  std::uint64_t dirty_bytes;      // free and backed
  std::uint64_t segments;
  std::uint64_t take_backs, take_back_naps, reclaimed_bytes;
  std::uint64_t large_spans, slab_spans;
  HeapCounters of_heaps;
  std::uint64_t heap_retired_bytes;
  std::uint64_t threads;
  std::uint64_t shards, shard_steals, remote_blocks_returned;
  PurgeCounters of_purges;
  std::uint64_t quarantined_ranges, quarantined_bytes, faults;
  std::uint64_t notified_open_mpi, notified_ucx, notified_libfabric;  // ranges
  std::uint64_t deep_binds;
};
Statistics statistics();

// Name, value and one line of explanation of each.
struct StatisticLine {
  const char* name;  // "stats.…", as rdmalloc_ctl() has it
  const char* help;
  std::uint64_t (*value)(const Statistics&);
};
std::span<const StatisticLine> statistic_lines();

}  // namespace rdmalloc
