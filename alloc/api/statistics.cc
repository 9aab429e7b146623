#include "alloc/api/statistics.h"

#include <errno.h>
#include <rdmalloc/rdmalloc.h>

#include <algorithm>
#include <cstring>

#include "alloc/api/deep_binds.h"
#include "alloc/api/notified.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/options.h"
#include "alloc/core/quarantine.h"
#include "alloc/core/shard.h"
#include "alloc/heaps/heap.h"
#include "alloc/os/fault.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/limits.h"
#include "alloc/pages/page_heap.h"
#include "alloc/purge/purge.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {

Statistics statistics() {
  Statistics s{};
  if (!ensure_initialised()) return s;
  fork_check();
  PageHeapCounters pages = page_heap_counters();
  s.arena_bytes = arena.extent();
  s.mapped_bytes = pages.frontier_slices << kSliceShift;
  s.used_bytes = pages.used_slices << kSliceShift;
  s.dirty_bytes = pages.dirty_slices << kSliceShift;
  s.segments = pages.segments;
  s.large_spans = pages.large_spans;
  s.slab_spans = pages.slab_spans;
  for (unsigned c = 1; c < kClasses; ++c) {
    s.slab_free_bytes += slab_counters(c).free_blocks * class_info(c).block_bytes;
    s.depot_bytes += depot_blocks(c) * class_info(c).block_bytes;
  }
  s.of_heaps = heap_counters();
  s.heap_retired_bytes = page_heap_retired_slices() << kSliceShift;
  // What was taken whole counts as theirs, whatever of it is out.
  std::uint64_t taken =
      s.of_heaps.span_bytes + s.of_heaps.region_bytes - s.of_heaps.region_span_bytes;
  std::uint64_t heap_free = taken - std::min(taken, s.of_heaps.live_bytes);
  std::uint64_t not_live = s.slab_free_bytes + s.depot_bytes + heap_free + s.heap_retired_bytes;
  s.live_bytes = s.used_bytes > not_live ? s.used_bytes - not_live : 0;
  s.take_backs = take_backs();
  s.take_back_naps = take_back_naps();
  s.reclaimed_bytes = reclaimed_bytes();
  CacheCounters caches = cache_counters();
  s.threads = caches.threads;
  s.cached_bytes = caches.cached_bytes;
  s.shards = shard_count();
  for (unsigned shard = 0; shard < s.shards; ++shard) {
    s.shard_steals += shards[shard].steals.load(std::memory_order_relaxed);
    s.remote_blocks_returned += shards[shard].remote_returned.load(std::memory_order_relaxed);
  }
  s.of_purges = purge_counters();
  s.quarantined_ranges = quarantined_ranges.load(std::memory_order_relaxed);
  s.quarantined_bytes = quarantined_bytes.load(std::memory_order_relaxed);
  s.notified_open_mpi = ranges_notified.open_mpi.load(std::memory_order_relaxed);
  s.notified_ucx = ranges_notified.ucx.load(std::memory_order_relaxed);
  s.notified_libfabric = ranges_notified.libfabric.load(std::memory_order_relaxed);
  s.deep_binds = deep_binds.load(std::memory_order_relaxed);
  s.faults = os::faults_fired();
  return s;
}

namespace {

#define LINE_OF(name, value, help)                                                     \
  {                                                                                    \
    "stats." #name, help, [](const Statistics& s) -> std::uint64_t { return s.value; } \
  }
#define LINE(field, help) LINE_OF(field, field, help)
constexpr StatisticLine kLines[] = {
    LINE(arena_bytes, "address space of the arena"),
    LINE(mapped_bytes, "bytes of address space that was ever handed out"),
    LINE(used_bytes, "bytes of spans in use"),
    LINE(live_bytes, "bytes of blocks in use or in threads' magazines"),
    LINE(slab_free_bytes, "bytes of free blocks in slabs"),
    LINE(depot_bytes, "bytes of free blocks in the depot"),
    LINE(cached_bytes, "bytes that threads' magazines may hold"),
    LINE(dirty_bytes, "bytes of free spans that are still backed by pages"),
    LINE(segments, "segments of 4 MiB that shards have for themselves"),
    LINE(take_backs, "times caches were emptied, as memory was short, before malloc would fail"),
    LINE(take_back_naps, "times malloc slept, for other threads to free memory"),
    LINE(reclaimed_bytes, "bytes taken from caches of idle threads, or of all on demand"),
    LINE(large_spans, "large blocks in use"),
    LINE(slab_spans, "slabs in use"),
    LINE_OF(heaps, of_heaps.heaps, "heaps of the user"),
    LINE_OF(heap_bytes, of_heaps.span_bytes, "bytes of spans in use by heaps of the user"),
    LINE_OF(heap_live_bytes, of_heaps.live_bytes, "bytes of blocks in use in heaps of the user"),
    LINE_OF(heap_refusals, of_heaps.refusals,
            "requests that a heap of the user had no budget or no memory for"),
    LINE_OF(heap_region_bytes, of_heaps.region_bytes,
            "bytes taken whole by heaps of the user, as registered ones do"),
    LINE_OF(heap_huge_2m_bytes, of_heaps.huge_2m_bytes,
            "of them on huge pages of 2 MiB from the kernel's pool (hugetlb)"),
    LINE_OF(heap_huge_1g_bytes, of_heaps.huge_1g_bytes,
            "of them on huge pages of 1 GiB from the kernel's pool (hugetlb)"),
    LINE(heap_retired_bytes,
         "bytes of destroyed heaps with a page size whose pages are held still"),
    LINE_OF(registered_heaps, of_heaps.registered, "registered heaps of the user"),
    LINE(threads, "threads that have magazines"),
    LINE(shards, "shards of the depot and the slabs: processors that threads were seen at"),
    LINE(shard_steals, "times a shard took free blocks from another"),
    LINE(remote_blocks_returned, "blocks of other NUMA nodes that went back to their slabs"),
    LINE_OF(purges, of_purges.purges, "successful decommits"),
    LINE_OF(purged_bytes, of_purges.purged_bytes, "bytes given back to the kernel"),
    LINE_OF(slab_purged_bytes, of_purges.slab_purged_bytes, "of them, pages of slabs in use"),
    LINE_OF(purge_refusals, of_purges.refusals, "slices whose purge an observer refused"),
    LINE_OF(purge_failures, of_purges.failures, "decommits that the kernel refused"),
    LINE(notified_open_mpi, "ranges that Open MPI was notified of by a call"),
    LINE(notified_ucx, "ranges that UCX was notified of by a call"),
    LINE(notified_libfabric, "ranges that libfabric was notified of by its imported monitor"),
    LINE(deep_binds, "calls of dlopen whose RTLD_DEEPBIND was left out"),
    LINE_OF(purge_thread_failures, of_purges.thread_failures,
            "times the purge thread could not be created"),
    LINE_OF(purge_pressure, of_purges.pressure_purges,
            "times memory went back early because the kernel was short of it"),
    LINE_OF(purge_thread_runs, of_purges.thread_runs, "1 while the purge thread runs"),
    LINE_OF(quiesces, of_purges.freezes, "times everything was stopped for a checkpoint"),
    LINE_OF(is_quiesced, of_purges.is_frozen, "1 between rdmalloc_quiesce() and rdmalloc_resume()"),
    LINE(quarantined_ranges, "registrations that a registrar could not end"),
    LINE(quarantined_bytes, "their bytes, which keep their pages for good"),
    LINE(faults, "calls that RDMALLOC_FAULT has made to fail"),
};
#undef LINE
#undef LINE_OF

}  // namespace

std::span<const StatisticLine> statistic_lines() {
  return kLines;
}

namespace {

struct Control {
  const char* name;
  std::uint64_t (*read)();
  int (*write)(std::uint64_t);  // nullptr: read only
  std::uint64_t largest;
};
int set_decay_ms(std::uint64_t decay_ms) {
  purge_set_decay_ms(decay_ms);
  return 0;
}
int set_dirty_max_bytes(std::uint64_t bytes) {
  if (bytes == 0) return -EINVAL;  // as RDMALLOC_DIRTY_MAX
  limits_set_dirty_max_bytes(bytes);
  return 0;
}
// Of a made-up topology only: elsewhere a thread is where the kernel put it.
int set_place(std::uint64_t place) {
  const os::TopologySource& source = options().topology;
  if (source.mode != os::TopologyMode::kMadeUp) return -EPERM;
  // Perhaps another thread is at it, for the time that it takes to fill a table.
  while (!os::topology_is_known()) {
    fork_check();  // that thread may be the parent's
    os::topology_learn(source);
  }
  if (!os::move_to_place(static_cast<unsigned>(place))) return -EPERM;
  cache_enter_shard();
  return 0;
}
std::uint64_t topology_number() {
  const os::TopologySource& source = options().topology;
  if (source.mode != os::TopologyMode::kMadeUp) return static_cast<std::uint64_t>(source.mode);
  return std::uint64_t{source.nodes} << 32 | source.processors;
}

// To 0 only: for tools that read what others wrote, and write nothing themselves.
int set_stats(std::uint64_t) {
  options_silence_stats();
  return 0;
}

constexpr Control kControls[] = {
    {"purge.decay_ms", [] { return purge_counters().decay_ms; }, set_decay_ms, 3600000},
    {"purge.dirty_max_bytes", limits_dirty_max_bytes, set_dirty_max_bytes, UINT64_MAX},
    {"thread.place", [] { return std::uint64_t{os::this_place()}; }, set_place,
     os::kMostPlaces - 1},
    {"thread.shard", [] { return std::uint64_t{cache_enter_shard()}; }, nullptr, 0},
    {"settings.topology", topology_number, nullptr, 0},
    {"settings.purge", [] { return std::uint64_t(options().purge); }, nullptr, 0},
    {"settings.huge", [] { return std::uint64_t(options().huge); }, nullptr, 0},
    {"settings.notify", [] { return std::uint64_t(options().notify); }, nullptr, 0},
    {"settings.foreign", [] { return std::uint64_t(options().foreign); }, nullptr, 0},
    {"settings.checkpoint", [] { return std::uint64_t(options().checkpoint ? 1 : 0); }, nullptr, 0},
    {"settings.check", [] { return std::uint64_t(options().check_frees ? 1 : 0); }, nullptr, 0},
    {"settings.pressure", [] { return std::uint64_t(options().watch_pressure ? 0 : 1); }, nullptr,
     0},
    {"settings.limit_bytes", [] { return options().limit_bytes; }, nullptr, 0},
    {"settings.reg_max_bytes", [] { return options().reg_max_bytes; }, nullptr, 0},
    {"settings.reg_max_count", [] { return options().reg_max_count; }, nullptr, 0},
    {"settings.stats_at_exit", [] { return std::uint64_t(options().stats_at_exit); }, set_stats, 0},
    {"settings.quiet", [] { return std::uint64_t(options().quiet); }, nullptr, 0},
};

int exchange(std::uint64_t current, void* old_value, size_t* old_size) {
  if (old_value == nullptr) return 0;
  if (old_size == nullptr || *old_size != sizeof current) return -EINVAL;
  std::memcpy(old_value, &current, sizeof current);
  return 0;
}

}  // namespace

}  // namespace rdmalloc

using namespace rdmalloc;

extern "C" int rdmalloc_ctl(const char* name, void* old_value, size_t* old_size,
                            const void* new_value, size_t new_size) {
  if (name == nullptr) return -EINVAL;
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();  // some enter a shard, under locks
  for (const Control& control : kControls) {
    if (std::strcmp(control.name, name) != 0) continue;
    std::uint64_t wanted = 0;
    if (new_value != nullptr) {
      if (control.write == nullptr) return -EPERM;
      if (new_size != sizeof wanted) return -EINVAL;
      std::memcpy(&wanted, new_value, sizeof wanted);
      if (wanted > control.largest) return -EINVAL;
    }
    if (int error = exchange(control.read(), old_value, old_size)) return error;
    return new_value != nullptr ? control.write(wanted) : 0;
  }
  for (const StatisticLine& line : kLines) {
    if (std::strcmp(line.name, name) != 0) continue;
    if (new_value != nullptr) return -EPERM;
    return exchange(line.value(statistics()), old_value, old_size);
  }
  return -ENOENT;
}
