#include "alloc/cache/thread_cache.h"

#include <errno.h>

#include <cstring>
#include <utility>

#include "alloc/cache/bin_limits.h"
#include "alloc/cache/bins.h"
#include "alloc/cache/cache_life.h"
#include "alloc/cache/coarse_classes.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/shards.h"
#include "alloc/cache/slow_events.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/options.h"
#include "alloc/core/report.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/segments.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// Whether the span, just taken, has pages that were never used. Told once.
bool is_new_span(const void* block) {
  Span& span = arena.span(arena.slice_of(block));
  bool is_new = span.new_from == 0;
  span.new_from = UINT32_MAX;
  return is_new;
}

// Of small blocks; a span is the page heap's then.
void* allocate_without_cache(unsigned size_class) {
  void* block = nullptr;
  return !is_span_class(size_class) && slab_take(0, size_class, &block, 1) == 1 ? block : nullptr;
}

// Of a magazine of the depot's with more than twice what the class may hold, so much; the rest goes
// back. Threads that took whole magazines each held fifty blocks for the few that they used: 256 of
// them that came and went, 64 blocks each, had 50 MiB resident for 30.
void take_part(const ThreadCache& cache, unsigned size_class, ColdBin& cold, Magazine* filled) {
  std::uint32_t count = cold.limit;
  filled->count -= count;
  std::memcpy(cold.loaded->slots, filled->slots + filled->count, count * sizeof(void*));
  order_for_fork();
  depot_put_back(cache.shard, size_class, filled);
}

// Whether the class has little room: of a thread that has no more to hold, or that keeps it short
// for others. What it has goes to and fro about the half that a refill takes.
bool is_short(const ThreadCache& cache, unsigned size_class, const ColdBin& cold) {
  return cache.loan.was_refused || is_kept_short(size_class, cold);
}

// Blocks that a thread takes of slabs at once: half of what the class may hold, where it goes to
// and fro about that (keeps_half).
std::uint32_t refill_of(const ThreadCache& cache, unsigned size_class, const ColdBin& cold) {
  std::uint32_t most = class_info(size_class).magazine_max;
  std::uint32_t wanted = cold.limit;
  if (cold.limit > 2 && is_short(cache, size_class, cold)) wanted = (cold.limit + 1u) / 2;
  return wanted < most ? wanted : most;
}

// Blocks of this shard's slabs, of which it returns how many, or a magazine of another's depot, or
// neither. What lies in other shards comes after what was used in this one: else blocks that
// threads took from each other once would go round among them for ever. But before pages of this
// one that are new: else each shard has pages for all that any thread of the process ever needed.
std::uint32_t take_of_shards(ThreadCache& cache, unsigned size_class, ColdBin& cold,
                             Magazine** filled) {
  unsigned shard = cache.shard;
  std::uint32_t wanted = refill_of(cache, size_class, cold);
  std::uint32_t got = slab_take_used(shard, size_class, cold.loaded->slots, wanted);
  if (got != 0) return got;
  // Of few shards there are no more lines to look at than that.
  bool are_few = shard_count() <= kFewShards, may = are_few || !cold.steals.leave_out();
  bool takes_rests = are_few || cache.comes_after_others;
  if (may) {
    *filled =
        depot_steal(shard, size_class, kShardsAskedBeforePages, takes_rests, &cache.steals_from);
  }
  if (*filled == nullptr)
    got = slab_take_used_of_others(shard, size_class, cold.loaded->slots, wanted);
  if (*filled == nullptr && got == 0)
    got = slab_take_own(shard, size_class, cold.loaded->slots, wanted);
  if (may && *filled == nullptr && got == 0)
    *filled = depot_steal(shard, size_class, kShardsAsked, takes_rests, &cache.steals_from);
  if (may && !are_few) {
    bool is_whole = *filled != nullptr && (*filled)->count >= class_info(size_class).whole;
    cold.steals.note(is_whole);
  }
  return got;
}

// Of blocks of 16 bytes that a class begins with, in the order of their addresses: changes it so
// that of those handed out one after the other no two lie in one cache line where there are eight,
// and of four no more than two where there are 16. Such blocks are what a thread makes for others
// at their start, one for each: the program cache-scratch took up to three times as long. Of more
// blocks neighbours are of one use.
void spread_over_lines(void** blocks, std::uint32_t count) {
  constexpr std::uint32_t kMost = 32;
  if (count > kMost) return;
  std::uint32_t half = count / 2;
  for (std::uint32_t i = 1; i < half; i += 2) std::swap(blocks[i], blocks[i + half - 1]);
}

// Enters what was just taken of slabs.
void set_taken(Bin& bin, ColdBin& cold, unsigned size_class, std::uint32_t count) {
  if (size_class == 1) spread_over_lines(cold.loaded->slots, count);
  set_bin(bin, cold, count);
}

// A magazine of spans of another shard's depot, before the page heap is asked. Only while the shard
// may take what is theirs: in the page heap free spans serve all lengths.
[[gnu::noinline]] Magazine* spans_of_others(ThreadCache& cache, unsigned size_class) {
  if (shard_count() > kFewShards || !may_take_beyond(cache.shard)) return nullptr;
  note_take_beyond(cache.shard);
  return depot_steal(cache.shard, size_class, kShardsAsked, true, &cache.steals_from);
}

// Fills the class's loaded, empty magazine. False when there is no memory.
bool refill(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cold_bin_of(cache, size_class);
  // A class of up to 1 KiB that begins with one block gets no more at its first trip. For longer
  // ones it is too little: 16 threads of 1 to 32 KiB moved a third more lines.
  bool may_grow = cold.is_taken_from || cold.limit > 1 || class_info(size_class).slab_slices != 1;
  cold.is_taken_from = true;
  std::uint32_t most = class_info(size_class).magazine_max;
  bool wants_part = 2u * cold.limit < class_info(size_class).whole;
  Magazine* filled = wants_part ? depot_take_partial(cache.shard, size_class) : nullptr;
  if (filled == nullptr) filled = depot_take(cache.shard, size_class);
  if (filled == nullptr) filled = depot_take_partial(cache.shard, size_class);
  if (filled == nullptr && may_grow) grow_limit(cache, size_class, most);
  if (filled == nullptr && shard_count() != 1) [[unlikely]] {
    if (is_span_class(size_class)) {
      filled = spans_of_others(cache, size_class);
    } else if (std::uint32_t got = take_of_shards(cache, size_class, cold, &filled)) {
      set_taken(bin, cold, size_class, got);
      return true;
    }
  }
  auto is_too_much = [&] {
    std::uint32_t twice = 2u * cold.limit, slots = slots_of(cold);
    return filled != nullptr && filled->count > (twice < slots ? twice : slots);
  };
  if (is_too_much()) grow_limit(cache, size_class, most);
  if (is_too_much()) {
    take_part(cache, size_class, cold, filled);
    set_bin(bin, cold, cold.limit);
    return true;
  }
  if (filled != nullptr && cold.length != Length::kWhole) {
    std::uint32_t count = filled->count;
    std::memcpy(cold.loaded->slots, filled->slots, count * sizeof(void*));
    order_for_fork();
    set_bin(bin, cold, count);
    depot_put_empty(cache.shard, filled);
    return true;
  }
  if (filled != nullptr) {
    Magazine* empty = cold.loaded;
    cold.loaded = filled;
    set_bin(bin, cold, filled->count);
    depot_put_empty(cache.shard, empty);
    return true;
  }
  std::uint32_t wanted = refill_of(cache, size_class, cold);
  std::uint32_t got = slab_take(cache.shard, size_class, cold.loaded->slots, wanted);
  if (got == 1 && is_span_class(size_class) && is_new_span(cold.loaded->slots[0])) [[unlikely]]
    give_up_spans(cache, class_info(size_class).slab_slices);
  set_taken(bin, cold, size_class, got);
  return got != 0;
}

// Whether a magazine goes to the depot with so many blocks: a whole one; or, of several nodes,
// where blocks of the others may have left it, still more than half of it.
bool is_for_depot(unsigned size_class, std::uint32_t count) {
  std::uint32_t whole = class_info(size_class).whole;
  return count >= whole || (os::node_count() != 1 && count * 2 > whole);
}

// Whether half of what a class's bin has stays when it is full: with two magazines' length; and of
// one that is short.
[[gnu::always_inline]] inline bool keeps_half(const ThreadCache& cache, unsigned size_class,
                                              std::uint32_t count) {
  const ClassInfo& info = class_info(size_class);
  if (count >= 2u * info.whole || count > info.magazine_max) return true;
  return count > 2 && is_short(cache, size_class, cold_bin_of(cache, size_class));
}

// Empties the class's loaded magazine, which can't be kept: to the depot when it is full, else to
// the slabs. Of what keeps half, those that were freed last stay, up to half of what the class may
// hold: it has room then, also where a magazine came with more than that.
void pass_on(ThreadCache& cache, unsigned size_class, std::uint32_t count) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cold_bin_of(cache, size_class);
  Magazine* full = cold.loaded;
  const ClassInfo& info = class_info(size_class);
  std::uint32_t kept = 0;
  if (cold.is_taken_from && keeps_half(cache, size_class, count))
    kept = (count < cold.limit ? count : cold.limit) / 2;
  // Not more than a magazine of the depot's, of a bin of several. There is room all the same: a bin
  // that has more than a magazine may hold as many, or, where shrink_limit() halved that, half.
  if (count - kept > info.magazine_max) kept = count - info.magazine_max;
  std::uint32_t part = count - kept;
  bool is_for = cold.length != Length::kShort && is_for_depot(size_class, part);
  Magazine* empty = is_for ? depot_take_empty(cache.shard) : nullptr;
  if (empty == nullptr) {
    set_bin(bin, cold, 0);
    if (cold.is_taken_from && info.slab_slices == 1) {
      full->count = part;
      depot_put_some(cache.shard, size_class, full);
    } else {
      slab_give_back_from(cache.shard, size_class, full->slots, part);
    }
    if (kept == 0) return;
    std::memmove(full->slots, full->slots + part, kept * sizeof(void*));
    return set_bin(bin, cold, kept);
  }
  if (kept != 0 || cold.length == Length::kPair) {
    set_bin(bin, cold, 0);
    std::memcpy(empty->slots, full->slots, part * sizeof(void*));
    std::memmove(full->slots, full->slots + part, kept * sizeof(void*));
    set_bin(bin, cold, kept);
    empty->count = part;
    order_for_fork();
    return depot_hand_over(cache.shard, size_class, empty, cold.is_taken_from);
  }
  full->count = count;
  order_for_fork();
  cold.loaded = empty;
  set_bin(bin, cold, 0);
  depot_hand_over(cache.shard, size_class, full, cold.is_taken_from);
}

// Of several nodes: blocks of the others leave the class's loaded magazine. How many are left;
// whether those that left were the latest.
std::uint32_t send_far_home(ThreadCache& cache, unsigned size_class, std::uint32_t count,
                            bool* were_latest) {
  Bin& bin = cache.bins[size_class];
  const ColdBin& cold = cold_bin_of(cache, size_class);
  cold.loaded->count = count;
  set_bin(bin, cold, 0);
  *were_latest = depot_return_remote_blocks(cache.shard, size_class, cold.loaded);
  set_bin(bin, cold, cold.loaded->count);
  return cold.loaded->count;
}

// Makes room in the class's loaded, full magazine.
void make_room(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cold_bin_of(cache, size_class);
  std::uint32_t count = count_of(bin, cold);
  if (os::node_count() != 1) [[unlikely]] {
    bool were_latest = false;
    std::uint32_t near = send_far_home(cache, size_class, count, &were_latest);
    // The thread frees what others had, and its own lie below: no room is made for more of that.
    bool is_for_others = near < count / 4 || were_latest;
    if (is_for_others && near <= count / 2) {
      shrink_limit(cache, size_class);
      set_bin(bin, cold, near);
    }
    if (is_for_others && (near > count / 2 || near >= cold.limit))
      return pass_on(cache, size_class, near);
    if (near <= count / 2 && near < cold.limit) return;
    count = near;
  }
  // What the thread only frees is wanted elsewhere.
  std::uint32_t most = cold.is_taken_from ? most_of_bin(cache, size_class)
                                          : std::uint32_t{class_info(size_class).magazine_max};
  if (grow_limit(cache, size_class, most) && cold.limit > count) return set_bin(bin, cold, count);
  pass_on(cache, size_class, count);
}

// Of a block that this thread holds: whether its pages are of another node than the thread is at.
bool is_far_span(const void* block) {
  return arena.span(arena.slice_of(block)).node != os::this_node();
}

void* allocate_slowly(unsigned size_class) {
  if (!ensure_initialised()) return nullptr;
  fork_check();
  ThreadCache* cache = cache_of_this_thread();
  if (cache == nullptr) cache = make_cache();
  if (cache == nullptr) return allocate_without_cache(size_class);
  SlowPath slow_path(*cache);
  note_slow_event(*cache);
  ColdBin& cold = cold_bin_of(*cache, size_class);
  if (cold.loaded == nullptr && !open_class(*cache, size_class))
    return allocate_without_cache(size_class);
  note_miss(*cache, cold, size_class);
  Bin& bin = cache->bins[size_class];
  // make_cache() and the like may have come back through malloc and filled the bin.
  if (bin.top[-1] == nullptr && !refill(*cache, size_class)) return nullptr;
  return *--bin.top;
}

}  // namespace

// nullptr, and ENOMEM, when that was in vain. A slab of eight slices wants them in one piece; where
// free ones lie apart, one of a single slice serves, and then what is free in other slabs.
[[gnu::cold, gnu::noinline]] static void* allocate_after_take_back(unsigned size_class,
                                                                   std::size_t bytes) {
  // First free blocks that served such sizes before: where they were taken after all else, each one
  // had emptied the caches of all threads, and half of them were found by none.
  unsigned other_class = class_of_other_kind(size_class, class_of(bytes));
  if (other_class != size_class) {
    if (void* block = allocate_slowly(other_class)) {
      if (!page_heap_is_over_room(class_info(size_class).slab_slices)) coarse_end_refused();
      in_use_begin(block, other_class);
      return block;
    }
  }
  unsigned short_class = short_class_of(size_class);
  TakeBack take_back;
  std::uint32_t slices = class_info(short_class != 0 ? short_class : size_class).slab_slices;
  while (take_back.again(slices)) {
    unsigned served = size_class;
    void* block = allocate_slowly(size_class);
    // There is memory, if not in the cgroup's room: no need of blocks that fit worse.
    if (block == nullptr && page_heap_is_over_room(class_info(size_class).slab_slices)) continue;
    if (block == nullptr && other_class != size_class)
      block = allocate_slowly(served = other_class);
    if (block == nullptr && short_class != 0) block = allocate_slowly(served = short_class);
    if (block == nullptr) block = take_longer(size_class, &served);
    if (block == nullptr) continue;
    in_use_begin(block, served);
    return block;
  }
  errno = ENOMEM;
  return nullptr;
}

// Whether the deferred block is of the class. A class with no other block comes here for it at each
// malloc, until one of so many such takes is a trip after all, which brings it another.
static bool is_deferred(unsigned size_class) {
  const ThreadCache& cache = *detail::this_cache;
  return cache.deferred != nullptr && cache.deferred_bin == &cache.bins[size_class];
}
static constexpr unsigned kTakesForTrip = 16;

void* cache_allocate_slow(unsigned size_class, std::size_t bytes) {
  if (size_class == 0 && ensure_initialised()) return cache_allocate(1, 1);  // malloc(0)
  void* block = is_deferred(size_class) && ++detail::this_cache->deferred_takes % kTakesForTrip != 0
                    ? detail::this_cache->take_deferred()
                    : allocate_slowly(size_class);
  if (block == nullptr && is_deferred(size_class)) block = detail::this_cache->take_deferred();
  if (block == nullptr) [[unlikely]]
    return allocate_after_take_back(size_class, bytes);
  in_use_begin(block, size_class);
  return block;
}

// The next one in the thread's cache whose pages are near. What it deferred before there were
// several nodes, too, is asked as it leaves its bin.
[[gnu::cold, gnu::noinline]] static void* take_near_span(unsigned size_class) {
  ThreadCache& cache = *detail::this_cache;
  if (cache.deferred_to >= kFirstSpanClass) {
    fork_check();
    SlowPath slow_path(cache);
    stop_deferring_buffers(cache);
  }
  void* block = cache_try_allocate(size_class);
  while (block != nullptr && is_far_span(block)) {
    fork_check();
    in_use_end(block, size_class);
    slab_give_back(size_class, &block, 1);
    block = cache_try_allocate(size_class);
  }
  return block;
}

void* cache_try_allocate_span(unsigned size_class) {
  if (os::node_count() != 1) [[unlikely]]
    return take_near_span(size_class);
  void* block = cache_try_allocate(size_class);
  if (block != nullptr) {
    if (!bin_table_has(size_class)) bin_table_enter_span(size_class);
    return block;
  }
  // Without the trip that brings another: a thread that defers buffers has many of the class.
  if (!is_deferred(size_class)) return nullptr;
  block = detail::this_cache->take_deferred();
  in_use_begin(block, size_class);
  return block;
}

void* cache_allocate_span(unsigned size_class) {
  if (void* block = cache_try_allocate_span(size_class)) return block;
  void* block = allocate_slowly(size_class);
  if (block != nullptr) in_use_begin(block, size_class);
  return block;
}

// A block enters its class's bin, where room is made, or goes to its slab where it has none.
static void enter(ThreadCache& cache, void* block, unsigned size_class) {
  ColdBin& cold = cold_bin_of(cache, size_class);
  bool is_open = cold.loaded != nullptr;
  if (!is_open && !open_class(cache, size_class)) return slab_give_back(size_class, &block, 1);
  Bin& bin = cache.bins[size_class];
  if (!is_open || bin.top == bin.end) note_miss(cache, cold, size_class);
  if (bin.top == bin.end) make_room(cache, size_class);
#if RDMALLOC_CHECKED
  if (bin.top >= bin.end) report_fatal_address("free() found no room in a magazine for", block);
#endif
  *bin.top = block;
  order_for_fork();
  bin.top += 1;
}

void cache_free_slow(void* block, unsigned size_class) {
  fork_check();
  ThreadCache* cache = cache_to_free_into();
  if (cache == nullptr) return slab_give_back(size_class, &block, 1);
  if (cache->deferred == block || cache->bins[size_class].top[-1] == block)
    report_fatal_address("double free() of", block);
  SlowPath slow_path(*cache);
  note_slow_event(*cache);
  if (cache->deferred != nullptr) {
    auto deferred_class = static_cast<unsigned>(cache->deferred_bin - cache->bins);
    enter(*cache, cache->take_deferred(), deferred_class);
  }
  enter(*cache, block, size_class);
}

void cache_flush_this_thread() {
  ThreadCache* cache = cache_of_this_thread();
  if (cache == nullptr) return;
  SlowPath slow_path(*cache);
  give_up(*cache);
}

void cache_give_up_spans(std::uint32_t slices) {
  ThreadCache* cache = cache_of_this_thread();
  if (cache == nullptr) return;
  SlowPath slow_path(*cache);
  give_up_spans(*cache, slices);
}

unsigned cache_enter_shard() {
  ThreadCache* cache = cache_of_this_thread();
  if (cache != nullptr && !may_stay(*cache)) enter_shard(*cache);
  return cache != nullptr ? cache->shard : shard_here();
}

unsigned cache_shard_for_large() {
  ThreadCache* cache = cache_of_this_thread();
  if (cache == nullptr) cache = make_cache();
  if (cache == nullptr) return cache_shard_without_cache();
  if (++cache->large_events % kEventsPerLook == 0 && !may_stay(*cache)) enter_shard(*cache);
  return cache->shard;
}

unsigned cache_shard_without_cache() {
  constinit static thread_local std::uint16_t known = 0;  // the shard, and 1
  if (options().topology.mode == os::TopologyMode::kMadeUp) return shard_here();
  if (known == 0) known = is_known_first_thread() ? 1 : static_cast<std::uint8_t>(shard_here()) + 1;
  return known - 1u;
}

}  // namespace rdmalloc
