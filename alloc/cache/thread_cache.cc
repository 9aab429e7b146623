// Longer than 600 lines, so that all that writes bins of its thread stands in one file.
#include "alloc/cache/thread_cache.h"

#include <errno.h>
#include <pthread.h>

#include <cstring>

#include "alloc/cache/caches_by_tls.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/shards.h"
#include "alloc/cache/shares.h"
#include "alloc/cache/short_magazines.h"
#include "alloc/core/fork.h"
#include "alloc/core/helper_threads.h"
#include "alloc/core/init.h"
#include "alloc/core/lock.h"
#include "alloc/core/options.h"
#include "alloc/core/purge_signal.h"
#include "alloc/core/report.h"
#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/segments.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// What all bins of a thread without a cache point at: one past a NULL. top[-1] is NULL (empty) and
// top == end (full). Never written.
constinit void* nothing[1] = {nullptr};

// Blocks that a class starts with in a thread; doubled at each trip to the slow path. With eight,
// threads that live for a few hundred blocks of all sizes touch 5 % more memory (the programs
// thread-churn and leaks).
constexpr std::uint32_t kFirstLimit = 4;
// The same of a thread beside more than kFirstThreads. What it does not use lies between the blocks
// of others: 64 threads of ten blocks each have 5.9 MiB resident with four, 5.0 with one. And a
// share of many pays for more classes: 64 threads of 16 B to 4 KiB take half the time.
constexpr std::uint32_t kFirstLimitOfMany = 1;
// Every so many trips to the slow path a thread looks at one class that it may not use any more: at
// eight of them in each 32nd, one call gave hundreds of blocks up.
constexpr std::uint32_t kEventsPerAge = 4;
// A class that came to the slow path less often since the last look at it, of 324 trips of all.
constexpr std::uint8_t kFewMisses = 4, kMostMisses = 15;
// And every so many whether others miss what it has borrowed: at each of them, 64 threads of 1 to
// 32 KiB moved 0.072 lines for each operation at their start, with this 0.047.
constexpr std::uint32_t kEventsPerReturn = 8;
// And every so many, or so many large blocks, where it runs.
constexpr std::uint32_t kEventsPerLook = 32;
// And every so many a thread that frees lets the purge thread know that caches are in use.
constexpr std::uint32_t kEventsPerNote = 8;
// POSIX runs key destructors in up to four rounds; ours waits for the third, so that the
// destructors of others that free and allocate still find a cache. Not for the fourth, in which
// ThreadSanitizer ends the thread's state.
constexpr int kLastExitRound = 2;

// A thread that has only freed so far has no cache for as many frees. libc frees a few blocks of
// its own after the key destructors, also on threads that never called malloc: nothing would end
// their caches. 20,000 detached threads left 78 MiB.
constexpr std::uint8_t kFreesWithoutCache = 16;

constinit Pool<ThreadCache> caches;
constinit CachesByTls<Pool<ThreadCache>> caches_by_tls;
constinit pthread_key_t exit_key = 0;

std::uint32_t slots_of(const ColdBin& cold) {
  return cold.is_short ? kShortSlots : kMagazineSlots;
}
std::uint32_t count_of(const Bin& bin, const ColdBin& cold) {
  return cold.loaded == nullptr ? 0 : static_cast<std::uint32_t>(bin.top - cold.loaded->slots);
}

void set_bin(Bin& bin, const ColdBin& cold, std::uint32_t count) {
  order_for_fork();
  bin.top = cold.loaded->slots + count;
  bin.end = cold.loaded->slots + (count > cold.limit ? count : cold.limit);
  order_for_fork();
}

// What a magazine that may hold `limit` blocks takes, itself included; of a short one its sheet is
// counted apart.
std::uint64_t cost_of(unsigned size_class, std::uint64_t limit, bool is_short) {
  return limit * class_info(size_class).block_bytes + (is_short ? 0 : sizeof(Magazine));
}
// The part of it, for a loaded one, that is the thread's own.
std::uint64_t own_part(const ThreadCache& cache, unsigned size_class, std::uint64_t limit,
                       bool is_short) {
  if (cache.own_blocks == 0 || is_span_class(size_class)) return 0;
  return cost_of(size_class, limit < cache.own_blocks ? limit : cache.own_blocks, is_short);
}
std::uint64_t cost_of(unsigned size_class, const ColdBin& cold) {
  return cost_of(size_class, cold.limit, cold.is_short) * (cold.spare != nullptr ? 2 : 1);
}

// The class goes on in a magazine of full length. False when there is none to be had.
[[gnu::noinline]] bool lengthen(ThreadCache& cache, unsigned size_class) {
  Magazine* longer = depot_take_empty(cache.shard);
  if (longer == nullptr) return false;
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cache.cold_bins[size_class];
  Magazine* piece = cold.loaded;
  std::uint32_t count = count_of(bin, cold);
  std::memcpy(longer->slots, piece->slots, count * sizeof(void*));
  order_for_fork();
  cold.is_short = false;
  cold.loaded = longer;  // in a child of a fork the bin does not point into it: it is not believed
  set_bin(bin, cold, count);
  put_short(cache, piece);
  return true;
}

// The first `part` blocks of a magazine that no bin works on leave it.
void hand_over_part(const ThreadCache& cache, unsigned size_class, Magazine* magazine,
                    std::uint32_t part, bool is_taken_from) {
  magazine->count -= part;
  Magazine* other = depot_take_empty(cache.shard);
  if (other != nullptr) {
    std::memcpy(other->slots, magazine->slots, part * sizeof(void*));
    other->count = part;
  } else {
    slab_give_back(size_class, magazine->slots, part);
  }
  std::memmove(magazine->slots, magazine->slots + part, magazine->count * sizeof(void*));
  if (other != nullptr) depot_hand_over(cache.shard, size_class, other, is_taken_from);
}

// What a magazine has that is longer than those of the depot goes there in such as these.
void shorten(const ThreadCache& cache, unsigned size_class, Magazine* magazine,
             bool is_taken_from) {
  std::uint32_t most = class_info(size_class).magazine_max;
  while (magazine->count > most) {
    std::uint32_t part = magazine->count - most;
    hand_over_part(cache, size_class, magazine, part < most ? part : most, is_taken_from);
  }
}

// Empties a class of a thread and forgets its magazines.
void drop_class(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cache.cold_bins[size_class];
  if (cold.loaded == nullptr) return;
  Magazine* loaded = cold.loaded;
  Magazine* spare = cold.spare;
  bool is_taken_from = cold.is_taken_from, is_short = cold.is_short;
  loaded->count = count_of(bin, cold);
  subtract_held(cache, size_class, cost_of(size_class, cold),
                own_part(cache, size_class, cold.limit, is_short));
  bin = {nothing + 1, nothing + 1};
  std::uint8_t alone = cold.refills_alone, alone_next = cold.refills_alone_next;
  cold = {};
  cold.refills_alone = alone;
  cold.refills_alone_next = alone_next;
  order_for_fork();
  if (is_short) return hand_over_short(cache, size_class, loaded, is_taken_from);
  shorten(cache, size_class, loaded, is_taken_from);
  depot_hand_over(cache.shard, size_class, loaded, is_taken_from);
  if (spare != nullptr) depot_hand_over(cache.shard, size_class, spare, is_taken_from);
}

void drop_all(ThreadCache& cache) {
  for (unsigned c = 1; c < kClasses; ++c) drop_class(cache, c);
  return_sheets(cache);
  return_loan(cache);
}

// Moves what lies above a gap (reclaim.h) down to where magazines begin. Of a cache whose owner
// calls, or is gone.
void close_gaps(ThreadCache& cache) {
  for (unsigned c = 1; c < kClasses; ++c) {
    Bin& bin = cache.bins[c];
    const ColdBin& cold = cache.cold_bins[c];
    if (cold.loaded == nullptr) continue;
    void** slots = cold.loaded->slots;
    // Of an owner that is gone and was on its way: drop_left() believes it no more than this.
    if (bin.top < slots || bin.top > slots + slots_of(cold)) continue;
    void** first = bin.top;
    while (first[-1] != nullptr) --first;
    if (first == slots) continue;
    auto count = static_cast<std::uint32_t>(bin.top - first);
    set_bin(bin, cold, 0);  // no child finds a block twice
    std::memmove(slots, first, count * sizeof(void*));
    set_bin(bin, cold, count);
  }
}

// drop_all() of a cache whose thread is gone, and may have been anywhere in its slow path. A bin
// that does not point into its loaded magazine is not believed: its blocks are lost, and nothing
// else.
void drop_left(ThreadCache& cache) {
  close_gaps(cache);
  return_loan(cache);
  for (unsigned c = 1; c < kClasses; ++c) {
    const Bin& bin = cache.bins[c];
    const ColdBin& cold = cache.cold_bins[c];
    if (cold.loaded == nullptr) continue;
    bool is_sane = bin.top >= cold.loaded->slots && bin.top <= cold.loaded->slots + slots_of(cold);
    if (is_sane && cold.spare != cold.loaded) drop_class(cache, c);
  }
  return_sheets(cache);
}

// Memory is short somewhere (take_back.h).
[[gnu::cold, gnu::noinline]] void give_up(ThreadCache& cache) {
  cache.take_backs_seen = take_backs();
  // A cgroup may have become small since.
  std::uint64_t share = span_share_of(loans.threads.load(std::memory_order_relaxed),
                                      dirty_limits.backed_bytes.load(std::memory_order_relaxed));
  if (share < cache.span_share) cache.span_share = share;
  drop_all(cache);
}

// Of a class that may hold more than the thread's own blocks: its spare goes, or a quarter of what
// it may hold, with what it has above that.
void shrink_class(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cache.cold_bins[size_class];
  if (cold.loaded == nullptr || is_span_class(size_class)) return;
  std::uint64_t cost = cost_of(size_class, cold);
  if (Magazine* spare = cold.spare; spare != nullptr) {
    cold.spare = nullptr;
    order_for_fork();
    subtract_held(cache, size_class, cost / 2, 0);
    return depot_hand_over(cache.shard, size_class, spare, cold.is_taken_from);
  }
  std::uint32_t least = cache.own_blocks == 0 ? 1 : cache.own_blocks;
  std::uint32_t limit = cold.limit * 3u / 4;
  if (limit < least) limit = least;
  if (limit >= cold.limit) return;
  std::uint32_t count = count_of(bin, cold);
  std::uint64_t own = own_part(cache, size_class, cold.limit, cold.is_short);
  cold.limit = static_cast<std::uint8_t>(limit);
  subtract_held(cache, size_class, cost - cost_of(size_class, cold),
                own - own_part(cache, size_class, limit, cold.is_short));
  if (count > limit) {
    cold.loaded->count = count;
    set_bin(bin, cold, 0);
    hand_over_part(cache, size_class, cold.loaded, count - limit, cold.is_taken_from);
    count = limit;
  }
  set_bin(bin, cold, count);
}

unsigned next_to_age(ThreadCache& cache) {
  unsigned c = cache.age_cursor + 1;
  cache.age_cursor = c % (kClasses - 1);
  return c;
}

// All classes together, in turn, until the cache holds what it may.
void shrink_classes(ThreadCache& cache) {
  std::uint64_t share = share_bytes(cache);
  for (unsigned looked = 0; charged(cache) > share && looked < 4 * kClasses; ++looked)
    shrink_class(cache, next_to_age(cache));
}

// Of a thread that was refused a loan: what came to the slow path less often than others gives them
// a part.
[[gnu::noinline]] void age_refused(ThreadCache& cache, unsigned size_class) {
  ColdBin& cold = cache.cold_bins[size_class];
  if (cold.misses < kFewMisses) shrink_class(cache, size_class);
  cold.misses = 0;
  cold.slot_at_age = slot_of(cache.bins[size_class].top);
}

// Of one that may hold more spans than others: not once there are more threads.
void fit_span_share(ThreadCache& cache) {
  if (loans.threads.load(std::memory_order_relaxed) <= kFewThreads) return;
  cache.span_share = kFirstSpanShareBytes;
  for (unsigned c = kClasses - 1; c >= kFirstSpanClass && cache.span_bytes > cache.span_share; --c)
    drop_class(cache, c);
}

// Runs on the slow path of the thread itself: a class that did not move since the last look gives
// its blocks up. With many threads a share shrinks; then each class looked at goes.
void age(ThreadCache& cache) {
  bool is_over_share = !may_hold(cache, 0, 0);
  unsigned c = next_to_age(cache);
  ColdBin& cold = cache.cold_bins[c];
  std::uint32_t slot = slot_of(cache.bins[c].top);
  if (is_over_share || slot == cold.slot_at_age)
    drop_class(cache, c);
  else
    cold.slot_at_age = slot;
  if (cache.was_refused) [[unlikely]]
    age_refused(cache, c);
  if (cache.span_share > kFirstSpanShareBytes) fit_span_share(cache);
  if (cache.age_cursor == 0) return_unused(cache);
}

// Of a real machine: whether the thread may stay in a shard that it has to itself, whatever
// processor it runs on. What it left there it finds again, and threads that are no more than the
// processors come to rest in a shard each.
bool may_stay(const ThreadCache& cache) {
  const Shard& shard = shards[cache.shard];
  return options().topology.mode != os::TopologyMode::kMadeUp &&
         shard.threads.load(std::memory_order_relaxed) == 1 &&
         shard.node.load(std::memory_order_relaxed) == os::this_node();
}

// Where the thread runs now; what it holds goes with it.
void enter_shard(ThreadCache& cache) {
  unsigned shard = shard_here();
  if (shard == cache.shard) return;
  shards[cache.shard].threads.fetch_sub(1, std::memory_order_relaxed);
  shards[shard].threads.fetch_add(1, std::memory_order_relaxed);
  if (!shards[shard].was_used.load(std::memory_order_relaxed))
    shards[shard].was_used.store(true, std::memory_order_relaxed);
  cache.shard = static_cast<std::uint8_t>(shard);
}

void note_miss(const ThreadCache& cache, ColdBin& cold) {
  if (!cache.was_refused || cold.misses == kMostMisses) return;
  cold.misses = (cold.misses + 1) & kMostMisses;
}

void note_slow_event(ThreadCache& cache) {
  if (cache.take_backs_seen != take_backs()) [[unlikely]]
    give_up(cache);
  std::uint32_t events = cache.slow_events.load(std::memory_order_relaxed) + 1;
  cache.slow_events.store(events, std::memory_order_relaxed);
  if (events % kEventsPerLook == 0 && !may_stay(cache)) enter_shard(cache);
  // One that has most of what is lent comes here seldom.
  if (events % kEventsPerReturn == 0 && has_excess(cache) && return_excess(cache)) [[unlikely]]
    shrink_classes(cache);
  if (events % kEventsPerAge == 0) age(cache);
}

// Makes room in the share for `bytes` more by giving up other classes, in turn.
void make_share(ThreadCache& cache, std::uint64_t bytes, unsigned keep) {
  if (may_hold(cache, bytes, keep)) return;
  std::uint64_t share = share_bytes(cache);
  for (unsigned looked = 0; charged(cache) + bytes > share && looked < kClasses; ++looked) {
    if (unsigned c = next_to_age(cache); c != keep) drop_class(cache, c);
  }
}

// Gives the class its first magazine. False when there is none to be had.
bool open_class(ThreadCache& cache, unsigned size_class) {
  ColdBin& cold = cache.cold_bins[size_class];
  std::uint64_t share = share_bytes(cache);
  std::uint32_t limit = share < kFirstShareBytes ? kFirstLimitOfMany : kFirstLimit;
  bool is_short = share < kFirstShareBytes && begins_short(size_class);
  std::uint64_t sheet =
      is_short && cache.free_short == nullptr ? sizeof(Magazine) - own_part_of_sheet(cache) : 0;
  auto charge = [&] {
    return cost_of(size_class, limit, is_short) - own_part(cache, size_class, limit, is_short) +
           sheet;
  };
  // One class may have a quarter of the share, and a single block in any case. Beside many threads
  // it begins with that where more would take other classes' place: 32 threads of 1 to 32 KiB left
  // the fast path at each second operation.
  while (limit > 1 && charge() > share / 4) limit /= 2;
  bool are_many = loans.threads.load(std::memory_order_relaxed) > kFirstThreads;
  if (limit > 1 && are_many && !may_hold(cache, charge(), size_class)) limit = 1;
  // Of small blocks one in any case; for a span no other class is given up.
  if (!is_span_class(size_class))
    make_share(cache, charge(), size_class);
  else if (!may_hold(cache, charge(), size_class))
    return false;
  Magazine* magazine = is_short ? take_short(cache) : depot_take_empty(cache.shard);
  if (magazine == nullptr) return false;
  magazine->count = 0;
  cold.loaded = magazine;
  cold.is_short = is_short;
  cold.spare = nullptr;
  cold.limit = static_cast<std::uint8_t>(limit);
  cold.is_taken_from = false;
  if (!cache.comes_after_others && cold.refills_alone_next == 0)
    cold.refills_alone = cold.refills_alone_next = kFirstRefillsAlone;
  add_held(cache, size_class, cost_of(size_class, limit, is_short),
           own_part(cache, size_class, limit, is_short));
  set_bin(cache.bins[size_class], cold, 0);
  return true;
}

// Doubles what the class may hold, up to `most` and what the cache may hold, but above a magazine
// by another or not at all: by a third of one, 64 threads of 16 B to 4 KiB took 5 % more memory. Of
// a class that the thread only frees, within a part of its share.
bool grow_limit(ThreadCache& cache, unsigned size_class, std::uint32_t most) {
  ColdBin& cold = cache.cold_bins[size_class];
  const ClassInfo& info = class_info(size_class);
  std::uint32_t limit = std::uint32_t{cold.limit} * 2;
  if (cold.limit >= info.magazine_max)
    limit = cold.limit + info.magazine_max;
  else if (limit > info.magazine_max)
    limit = info.magazine_max;
  if (limit > most) limit = most;
  if (limit <= cold.limit) return false;
  // Of spans as many as there is room for: they are long, and a share is for them alone.
  if (is_span_class(size_class)) {
    std::uint64_t room = (cache.span_share - cache.span_bytes) / info.block_bytes;
    if (cold.limit + room < limit) limit = cold.limit + static_cast<std::uint32_t>(room);
    if (limit == cold.limit) return false;
  }
  bool is_too_short = cold.is_short && limit > kShortSlots;
  std::uint64_t more =
      std::uint64_t{limit - cold.limit} * info.block_bytes + (is_too_short ? sizeof(Magazine) : 0);
  std::uint64_t own = own_part(cache, size_class, limit, cold.is_short && !is_too_short) -
                      own_part(cache, size_class, cold.limit, cold.is_short);
  if (cold.spare != nullptr) more *= 2;
  bool is_allowed = cold.is_taken_from || is_span_class(size_class)
                        ? may_hold(cache, more - own, size_class)
                        : may_hold_of_freed(cache, more - own);
  if (!is_allowed || (is_too_short && !lengthen(cache, size_class))) return false;
  cold.limit = static_cast<std::uint8_t>(limit);
  add_held(cache, size_class, more, own);
  return true;
}

// A thread that holds fewer slices keeps them: what could be had is not worth the call.
constexpr std::uint32_t kSpansWorthAsking = (std::uint32_t{1} << 20) / kSliceBytes;

std::uint32_t slices_held(const ThreadCache& cache, unsigned size_class) {
  const ColdBin& cold = cache.cold_bins[size_class];
  std::uint32_t spans = count_of(cache.bins[size_class], cold);
  if (cold.spare != nullptr) spans += cold.spare->count;
  return spans * class_info(size_class).slab_slices;
}

// Spans that the thread or its shard's depot keeps go to the page heap, where blocks of all lengths
// find their pages: twice as much as a block has that took pages which were never used. The next
// one is to take these first.
[[gnu::noinline]] void give_up_spans(ThreadCache& cache, std::uint32_t slices) {
  std::uint32_t held = 0, given = 0;
  for (unsigned c = kFirstSpanClass; c < kClasses; ++c) held += slices_held(cache, c);
  if (held < kSpansWorthAsking) {
    // The depot keeps none of a thread that is alone.
    if (loans.threads.load(std::memory_order_relaxed) > 1)
      depot_give_up_spans(cache.shard, 2 * slices);
    return;
  }
  for (unsigned c = kClasses - 1; c >= kFirstSpanClass && given < 2 * slices; --c) {
    Bin& bin = cache.bins[c];
    const ColdBin& cold = cache.cold_bins[c];
    if (cold.loaded == nullptr) continue;
    given += slices_held(cache, c);
    std::uint32_t count = count_of(bin, cold);
    set_bin(bin, cold, 0);
    slab_give_back(c, cold.loaded->slots, count);
    if (cold.spare == nullptr || cold.spare->count == 0) continue;
    count = cold.spare->count;
    cold.spare->count = 0;
    order_for_fork();
    slab_give_back(c, cold.spare->slots, count);
  }
}

// Whether the span, just taken, has pages that were never used. Told once.
bool is_new_span(const void* block) {
  Span& span = arena.span(arena.slice_of(reinterpret_cast<std::uintptr_t>(block)));
  bool is_new = span.new_from == 0;
  span.new_from = UINT32_MAX;
  return is_new;
}

// ---- threads coming and going ----

// Of a cache that is empty, and whose thread_id is 0: within the slow path, so that a taker that
// finds no thread there lets it be (reclaim.h).
void end_cache(ThreadCache& cache) {
  shards[cache.shard].threads.fetch_sub(1, std::memory_order_relaxed);
  caches.free(&cache);
  loans.threads.fetch_sub(1, std::memory_order_relaxed);
}

void on_thread_exit(void* value) {
  auto* cache = static_cast<ThreadCache*>(value);
  if (cache->exit_rounds++ < kLastExitRound) {
    pthread_setspecific(exit_key, cache);
    return;
  }
  fork_check();
  // From here on this thread has no cache: libc's own last frees go straight to the slabs.
  detail::this_cache = &detail::empty_cache;
  {
    SlowPath slow_path(*cache);
    drop_all(*cache);
    cache->thread_id.store(0, std::memory_order_relaxed);
  }
  is_known_first_thread() ? purge_note_first_thread_ends() : purge_note_thread_ends();
  end_cache(*cache);
}

// The calling thread's cache; nullptr when it has none (before it is made, after its end, or when
// no metadata is to be had): the caller then works on the slabs directly.
ThreadCache* cache_of_this_thread() {
  ThreadCache* cache = detail::this_cache;
  return cache == &detail::empty_cache ? nullptr : cache;
}

// Set while a thread is past its last key destructor, and while its cache is being made.
thread_local constinit bool has_no_cache = false;
// Up to kFreesWithoutCache.
thread_local constinit std::uint8_t frees_without_cache = 0;

ThreadCache* make_cache() {
  if (has_no_cache || options().check_frees) return nullptr;
  has_no_cache = true;  // pthread_setspecific may allocate
  auto tls = reinterpret_cast<std::uintptr_t>(&detail::this_cache);
  auto place = caches_by_tls.find(caches, tls);
  if (place.left != 0) [[unlikely]] {
    ThreadCache& left = *caches.at(place.left);
    {
      SlowPath slow_path(left);
      drop_left(left);
      left.thread_id.store(0, std::memory_order_relaxed);
    }
    end_cache(left);
  }
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  bool is_one_too_many = loans.threads.load(std::memory_order_relaxed) >= most_caches(backed);
  ThreadCache* cache = is_one_too_many ? nullptr : caches.allocate();
  if (cache == nullptr) {
    has_no_cache = false;
    return nullptr;
  }
  cache->reset(nothing + 1, thread_id(), tls);
  caches_by_tls.note(place, caches.index_of(cache));
  // Where there is one thread there is one place: its processors are not asked for. Of more, what
  // takes files to know is learned before they are made (shards_learn).
  std::uint32_t others = loans.threads.fetch_add(1, std::memory_order_relaxed);
  bool is_first = others == 0;
  cache->own_blocks = static_cast<std::uint8_t>(own_blocks_of(std::uint64_t{others} + 1));
  cache->span_share = span_share_of(std::uint64_t{others} + 1, backed);
  const os::TopologySource& topology = options().topology;
  if (is_first) os::topology_note_first_thread();
  if (topology.mode == os::TopologyMode::kMadeUp) os::topology_learn(topology);
  shards[0].threads.fetch_add(1, std::memory_order_relaxed);
  if (is_first) shards[0].was_used.store(true, std::memory_order_relaxed);
  enter_shard(*cache);
  detail::this_cache = cache;
  // libc may want memory for its table of keys, and say in errno that there is none: not in free().
  int saved = errno;
  if (pthread_setspecific(exit_key, cache) == 0 && is_known_first_thread())
    first_thread_notifies.store(true, std::memory_order_relaxed);
  errno = saved;
  // Stays true: on_thread_exit leaves it so, and a thread has one cache in its life.
  return cache;
}

// The calling thread's cache, for a free.
ThreadCache* cache_to_free_into() {
  if (ThreadCache* cache = cache_of_this_thread()) return cache;
  if (frees_without_cache == kFreesWithoutCache) return make_cache();
  ++frees_without_cache;
  return nullptr;
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

// Puts the spare in the place of the loaded magazine, which has `count` blocks.
void swap_magazines(Bin& bin, ColdBin& cold, std::uint32_t count) {
  Magazine* spare = cold.spare;
  cold.loaded->count = count;
  order_for_fork();
  cold.spare = cold.loaded;
  cold.loaded = spare;
  set_bin(bin, cold, spare->count);
}

// Blocks that a thread takes of slabs at once: half of what the class may hold, where it can't hold
// more (keeps_half).
std::uint32_t refill_of(const ThreadCache& cache, unsigned size_class, const ColdBin& cold) {
  std::uint32_t most = class_info(size_class).magazine_max;
  if (cache.was_refused && cold.limit > 2) most = (cold.limit + 1u) / 2;
  return cold.limit < most ? cold.limit : most;
}

// Whether this refill asks other shards' depots. Where they had nothing whole it is the second from
// then, the fourth after that, and so on, up to the 32nd: each look at a stack takes a line from
// the threads that use it, and gives it back.
bool may_steal(ColdBin& cold) {
  if (cold.refills_alone == 0) return true;
  --cold.refills_alone;
  return false;
}
void note_steal(ColdBin& cold, bool has_found) {
  constexpr std::uint8_t kMostAlone = 31;
  std::uint8_t next = has_found                              ? 0
                      : cold.refills_alone_next < kMostAlone ? cold.refills_alone_next * 2 + 1
                                                             : kMostAlone;
  cold.refills_alone = cold.refills_alone_next = next;
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
  bool are_few = shard_count() <= kFewShards, may = are_few || may_steal(cold);
  bool takes_rests = are_few || cache.comes_after_others;
  if (may) {
    *filled =
        depot_steal(shard, size_class, kShardsAskedBeforePages, takes_rests, &cache.steals_from);
  }
  if (*filled == nullptr) got = slab_take_own(shard, size_class, cold.loaded->slots, wanted);
  if (may && *filled == nullptr && got == 0)
    *filled = depot_steal(shard, size_class, kShardsAsked, takes_rests, &cache.steals_from);
  if (may && !are_few) {
    bool is_whole = *filled != nullptr && (*filled)->count >= class_info(size_class).whole;
    note_steal(cold, is_whole);
  }
  return got;
}

// Fills the class's loaded, empty magazine. False when there is no memory.
bool refill(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cache.cold_bins[size_class];
  if (cold.spare != nullptr && cold.spare->count != 0) {
    swap_magazines(bin, cold, 0);
    return true;
  }
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
  if (filled == nullptr && shard_count() != 1 && !is_span_class(size_class)) [[unlikely]] {
    if (std::uint32_t got = take_of_shards(cache, size_class, cold, &filled)) {
      set_bin(bin, cold, got);
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
  if (filled != nullptr && cold.is_short) {
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
  set_bin(bin, cold, got);
  return got != 0;
}

// Whether a magazine goes to the depot with so many blocks: a whole one; or, of several nodes,
// where blocks of the others may have left it, still more than half of it.
bool is_for_depot(unsigned size_class, std::uint32_t count) {
  std::uint32_t whole = class_info(size_class).whole;
  return count >= whole || (os::node_count() != 1 && count * 2 > whole);
}

// Empties the spare of a class: to the depot when it is full enough, else to the slabs.
void clear_spare(const ThreadCache& cache, unsigned size_class, ColdBin& cold) {
  Magazine* spare = cold.spare;
  std::uint32_t count = spare->count;
  Magazine* empty = is_for_depot(size_class, count) ? depot_take_empty(cache.shard) : nullptr;
  if (empty == nullptr) {
    spare->count = 0;
    order_for_fork();
    slab_give_back(size_class, spare->slots, count);
    return;
  }
  empty->count = 0;
  order_for_fork();
  cold.spare = empty;
  order_for_fork();
  depot_hand_over(cache.shard, size_class, spare, cold.is_taken_from);
}

// Gives the class its spare magazine, if the thread's share allows it.
bool open_spare(ThreadCache& cache, unsigned size_class, ColdBin& cold) {
  if (cold.is_short) return false;
  std::uint64_t cost = cost_of(size_class, cold.limit, false);
  Magazine* spare = may_hold(cache, cost, size_class) ? depot_take_empty(cache.shard) : nullptr;
  if (spare == nullptr) return false;
  spare->count = 0;
  order_for_fork();
  cold.spare = spare;
  add_held(cache, size_class, cost, 0);
  return true;
}

// Whether half of a class's loaded magazine stays when it is full: of long blocks with two
// magazines' length; and of a thread that has no more to hold, where what it has of a class goes to
// and fro about the half that a refill takes.
[[gnu::always_inline]] inline bool keeps_half(const ThreadCache& cache, unsigned size_class,
                                              const ColdBin& cold, std::uint32_t count) {
  const ClassInfo& info = class_info(size_class);
  if (!has_spare(size_class) && count >= 2u * info.whole) return true;
  return count > info.magazine_max || (cache.was_refused && cold.spare == nullptr && count > 2);
}

// Empties the class's loaded magazine, which can't be kept: to the depot when it is full, else to
// the slabs. Of what keeps half, those that were freed last stay, up to half of what the class may
// hold: it has room then, also where a magazine came with more than that.
void pass_on(ThreadCache& cache, unsigned size_class, std::uint32_t count) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cache.cold_bins[size_class];
  Magazine* full = cold.loaded;
  const ClassInfo& info = class_info(size_class);
  std::uint32_t kept = 0;
  if (cold.is_taken_from && keeps_half(cache, size_class, cold, count))
    kept = (count < cold.limit ? count : cold.limit) / 2;
  // Not more than a magazine of the depot's, of a bin of several. There is room all the same: a bin
  // that has more than a magazine may hold as many, or, where shrink_limit() halved that, half.
  if (count - kept > info.magazine_max) kept = count - info.magazine_max;
  std::uint32_t part = count - kept;
  bool is_for = !cold.is_short && is_for_depot(size_class, part);
  Magazine* empty = is_for ? depot_take_empty(cache.shard) : nullptr;
  if (empty == nullptr) {
    set_bin(bin, cold, 0);
    if (cold.is_taken_from && info.slab_slices == 1) {
      full->count = part;
      depot_put_some(cache.shard, size_class, full);
    } else {
      slab_give_back(size_class, full->slots, part);
    }
    if (kept == 0) return;
    std::memmove(full->slots, full->slots + part, kept * sizeof(void*));
    return set_bin(bin, cold, kept);
  }
  if (kept != 0) {
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
  const ColdBin& cold = cache.cold_bins[size_class];
  cold.loaded->count = count;
  set_bin(bin, cold, 0);
  *were_latest = depot_return_remote_blocks(cache.shard, size_class, cold.loaded);
  set_bin(bin, cold, cold.loaded->count);
  return cold.loaded->count;
}

// Of a thread that frees what threads of another node had: halves what the class may hold, so that
// fewer of those blocks wait in its magazine, to be its next ones, when it has freed them all. The
// next refills let it grow again.
void shrink_limit(ThreadCache& cache, unsigned size_class) {
  ColdBin& cold = cache.cold_bins[size_class];
  std::uint32_t limit = cold.limit / 2u < kFirstLimit ? kFirstLimit : cold.limit / 2u;
  if (limit >= cold.limit || is_span_class(size_class)) return;
  subtract_held(cache, size_class, cost_of(size_class, cold),
                own_part(cache, size_class, cold.limit, cold.is_short));
  cold.limit = static_cast<std::uint8_t>(limit);
  add_held(cache, size_class, cost_of(size_class, cold),
           own_part(cache, size_class, limit, cold.is_short));
}

// Makes room in the class's loaded, full magazine.
void make_room(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cache.cold_bins[size_class];
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
  const ClassInfo& info = class_info(size_class);
  std::uint32_t most = cold.is_taken_from ? info.bin_max : info.magazine_max;
  if (grow_limit(cache, size_class, most) && cold.limit > count) return set_bin(bin, cold, count);
  if (!has_spare(size_class)) return pass_on(cache, size_class, count);
  if (cold.spare == nullptr) {
    if (!cold.is_taken_from || !open_spare(cache, size_class, cold))
      return pass_on(cache, size_class, count);
  } else if (cold.spare->count != 0) {
    clear_spare(cache, size_class, cold);
  }
  swap_magazines(bin, cold, count);
}

// Of a block that this thread holds: whether its pages are of another node than the thread is at.
bool is_far_span(const void* block) {
  return arena.span(arena.slice_of(reinterpret_cast<std::uintptr_t>(block))).node !=
         os::this_node();
}

void* allocate_slowly(unsigned size_class) {
  if (!ensure_initialised()) return nullptr;
  fork_check();
  ThreadCache* cache = cache_of_this_thread();
  if (cache == nullptr) cache = make_cache();
  if (cache == nullptr) return allocate_without_cache(size_class);
  SlowPath slow_path(*cache);
  note_slow_event(*cache);
  if (cache->cold_bins[size_class].loaded == nullptr && !open_class(*cache, size_class))
    return allocate_without_cache(size_class);
  note_miss(*cache, cache->cold_bins[size_class]);
  Bin& bin = cache->bins[size_class];
  // make_cache() and the like may have come back through malloc and filled the bin.
  if (bin.top[-1] == nullptr && !refill(*cache, size_class)) return nullptr;
  return *--bin.top;
}

}  // namespace

namespace detail {
constinit ThreadCache empty_cache{nothing + 1};
thread_local constinit ThreadCache* this_cache = &empty_cache;
}  // namespace detail

// nullptr, and ENOMEM, when that was in vain. A slab of eight slices wants them in one piece; where
// free ones lie apart, one of a single slice serves, and then what is free in other slabs.
[[gnu::cold, gnu::noinline]] static void* allocate_after_take_back(unsigned size_class) {
  unsigned short_class = short_class_of(size_class);
  TakeBack take_back;
  std::uint32_t slices = class_info(short_class != 0 ? short_class : size_class).slab_slices;
  while (take_back.again(slices)) {
    unsigned served = size_class;
    void* block = allocate_slowly(size_class);
    // There is memory, if not in the cgroup's room: no need of blocks that fit worse.
    if (block == nullptr && page_heap_is_over_room(class_info(size_class).slab_slices)) continue;
    if (block == nullptr && short_class != 0) block = allocate_slowly(served = short_class);
    if (block == nullptr) block = take_longer(size_class, &served);
    if (block == nullptr) continue;
    in_use_begin(block, served);
    return block;
  }
  errno = ENOMEM;
  return nullptr;
}

void* cache_allocate_slow(unsigned size_class) {
  if (size_class == 0 && ensure_initialised()) return cache_allocate(1);  // malloc(0)
  void* block = allocate_slowly(size_class);
  if (block == nullptr) [[unlikely]]
    return allocate_after_take_back(size_class);
  in_use_begin(block, size_class);
  return block;
}

// `block`, or the next one in the thread's cache whose pages are near.
[[gnu::cold, gnu::noinline]] static void* near_span(void* block, unsigned size_class) {
  while (block != nullptr && is_far_span(block)) {
    fork_check();
    in_use_end(block, size_class);
    slab_give_back(size_class, &block, 1);
    block = cache_try_allocate(size_class);
  }
  return block;
}

void* cache_try_allocate_span(unsigned size_class) {
  void* block = cache_try_allocate(size_class);
  if (os::node_count() != 1) [[unlikely]]
    return near_span(block, size_class);
  if (block != nullptr && !bin_table_has(size_class)) bin_table_enter_span(size_class);
  return block;
}

void* cache_allocate_span(unsigned size_class) {
  if (void* block = cache_try_allocate_span(size_class)) return block;
  void* block = allocate_slowly(size_class);
  if (block != nullptr) in_use_begin(block, size_class);
  return block;
}

void cache_free_slow(void* block, unsigned size_class) {
  fork_check();
  ThreadCache* cache = cache_to_free_into();
  if (cache == nullptr) return slab_give_back(size_class, &block, 1);
  SlowPath slow_path(*cache);
  note_slow_event(*cache);
  if (cache->slow_events.load(std::memory_order_relaxed) % kEventsPerNote == 0)
    purge_note_caches_grow();
  if (cache->cold_bins[size_class].loaded == nullptr && !open_class(*cache, size_class))
    return slab_give_back(size_class, &block, 1);
  note_miss(*cache, cache->cold_bins[size_class]);
  Bin& bin = cache->bins[size_class];
  if (bin.top[-1] == block) report_fatal_address("double free() of", block);
  if (bin.top == bin.end) make_room(*cache, size_class);
#if RDMALLOC_CHECKED
  if (bin.top >= bin.end) report_fatal_address("free() found no room in a magazine for", block);
#endif
  *bin.top = block;
  order_for_fork();
  bin.top += 1;
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

int cache_init() {
  bin_table_init();
  if (int error = magazines.reserve(reserved_for_magazines(arena.room_bytes))) return error;
  if (int error = caches.reserve(reserved_for_caches(arena.room_bytes))) return error;
  if (os::should_fail(os::Site::kThreadKey)) return -EAGAIN;
  return -pthread_key_create(&exit_key, on_thread_exit);
}

void caches_fit_limit(std::uint64_t limit_bytes) {
  magazines.give_up_beyond(reserved_for_magazines(limit_bytes));
  caches.give_up_beyond(reserved_for_caches(limit_bytes));
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

std::uint32_t caches_made() {
  return caches.used();
}

ThreadCache* cache_at(std::uint32_t index) {
  return caches.at(index);
}

void cache_resume(ThreadCache& cache) {
  cache.reclaim_state.fetch_and(static_cast<std::uint8_t>(~kHasGaps), std::memory_order_relaxed);
  close_gaps(cache);
  make_share(cache, 0, 0);  // its loan is gone
}

CacheCounters cache_counters() {
  CacheCounters counters{loans.threads.load(std::memory_order_relaxed), 0, magazines.used() - 1};
  for (std::uint32_t i = 1; i < caches.used(); ++i) {
    ThreadCache& cache = *caches.at(i);
    if (cache.thread_id.load(std::memory_order_relaxed) != 0)
      counters.cached_bytes += cache_bytes(cache);
  }
  return counters;
}

void caches_after_fork() {
  reclaim_after_fork();
  caches.lock().reset();
  magazines.lock().reset();
}

void cache_reclaim_after_fork() {
  // The thread that forked is the child's first, whose id is the process's. A thread made since may
  // come here before it does: then no thread knows which cache is still in use, and what vanished
  // threads held (within what all caches may hold) is lost to this child.
  first_thread_notifies.store(false, std::memory_order_relaxed);
  if (!os::is_first_thread()) return;
  reclaim_end_after_fork();
  ThreadCache* mine = detail::this_cache;
  first_thread_notifies.store(mine != &detail::empty_cache, std::memory_order_relaxed);
  for (std::uint32_t i = 1; i < caches.used(); ++i) {
    ThreadCache& cache = *caches.at(i);
    cache.reclaim_state.store(0, std::memory_order_relaxed);
    if (&cache == mine) continue;
    cache.is_in_slow_path.store(false, std::memory_order_relaxed);
    if (cache.thread_id.load(std::memory_order_relaxed) == 0) continue;
    drop_left(cache);
    cache.thread_id.store(0, std::memory_order_relaxed);
    caches.free(&cache);
  }
  loans.threads.store(mine == &detail::empty_cache ? 0 : 1, std::memory_order_relaxed);
  loans.lent_bytes.store(mine->lent_bytes, std::memory_order_relaxed);
  if (mine == &detail::empty_cache) return;
  mine->reclaim_state.store(kHasGaps,
                            std::memory_order_relaxed);  // perhaps: its next slow path looks
  mine->thread_id.store(thread_id(), std::memory_order_relaxed);
  shards[mine->shard].threads.store(1, std::memory_order_relaxed);
}

}  // namespace rdmalloc
