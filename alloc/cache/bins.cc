#include "alloc/cache/bins.h"

#include <cstring>

#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/long_block.h"
#include "alloc/os/topology.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// A thread that holds fewer slices keeps them: what could be had is not worth the call.
constexpr std::uint32_t kSpansWorthAsking = (std::uint32_t{1} << 20) / kSliceBytes;

// What a magazine has above `left` goes to the depot, in such as are usual there.
void hand_over_down_to(const ThreadCache& cache, unsigned size_class, Magazine* magazine,
                       std::uint32_t left, bool is_taken_from) {
  std::uint32_t most = class_info(size_class).magazine_max;
  while (magazine->count > left) {
    std::uint32_t part = magazine->count - left;
    hand_over_part(cache, size_class, magazine, part < most ? part : most, is_taken_from);
  }
}

std::uint32_t slices_held(const ThreadCache& cache, unsigned size_class) {
  return count_of(cache.bins[size_class], cold_bin_of(cache, size_class)) *
         class_info(size_class).slab_slices;
}

}  // namespace

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

// In between the bin points to nothing: a child of a fork does not believe it.
bool move_to(ThreadCache& cache, unsigned size_class, Length length) {
  Magazine* other = take_of_length(cache, length);
  if (other == nullptr) return false;
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cold_bin_of(cache, size_class);
  Magazine* before = cold.loaded;
  Length length_before = cold.length;
  std::uint32_t count = count_of(bin, cold);
  std::memcpy(other->slots, before->slots, count * sizeof(void*));
  bin = {nothing + 1, nothing + 1};
  order_for_fork();
  cold.loaded = other;
  cold.length = length;
  set_bin(bin, cold, count);
  put_of_length(cache, before, length_before);
  return true;
}

void drop_class(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cold_bin_of(cache, size_class);
  if (cold.loaded == nullptr) return;
  bool defers_buffers = is_span_class(size_class) && cache.deferred_to >= kFirstSpanClass;
  if (defers_buffers) stop_deferring_buffers(cache);
  Magazine* loaded = cold.loaded;
  bool is_taken_from = cold.is_taken_from;
  Length length = cold.length;
  loaded->count = count_of(bin, cold);
  subtract_held(cache, size_class, cost_of(size_class, cold), own_part(cache, size_class, cold));
  bin = {nothing + 1, nothing + 1};
  VainLooks steals = cold.steals;
  cold = {};
  cold.steals = steals;
  if (defers_buffers) defer_buffers(cache);
  order_for_fork();
  std::uint32_t left = length == Length::kWhole ? class_info(size_class).magazine_max : 0;
  hand_over_down_to(cache, size_class, loaded, left, is_taken_from);
  if (length != Length::kWhole) return put_of_length(cache, loaded, length);
  depot_hand_over(cache.shard, size_class, loaded, is_taken_from);
}

void defer_buffers(ThreadCache& cache) {
  if (os::node_count() != 1) return;
  unsigned last = kClasses - 1;
  while (is_span_class(last) && cold_bin_of(cache, last).limit <= class_info(last).magazine_max)
    --last;
  cache.deferred_to = last;
}

// By the class map: a child of fork may see a block that has not its bin yet.
void drop_deferred(ThreadCache& cache) {
  void* block = cache.take_deferred();
  if (block == nullptr) return;
  SliceIndex slice = arena.slice_of(reinterpret_cast<std::uintptr_t>(block));
  slab_give_back(arena.class_at(slice), &block, 1);
}

// With the others, to the depot. Inlined where threads end: it would lie with code that few run.
[[gnu::always_inline]] static inline void enter_deferred(ThreadCache& cache) {
  Bin& bin = *cache.deferred_bin;
  if (cache.deferred == nullptr || bin.top == bin.end) return drop_deferred(cache);
  *bin.top = cache.take_deferred();
  order_for_fork();
  bin.top += 1;
}

// The deferred one as well: once buffers enter at once, a free() looks for its block on top of the
// bin only. Cold: most threads have few buffers, and run what lies before it.
[[gnu::cold, gnu::noinline]] void stop_deferring_buffers(ThreadCache& cache) {
  if (cache.deferred_bin >= &cache.bins[kFirstSpanClass]) enter_deferred(cache);
  cache.deferred_to = kFirstSpanClass - 1;
}

void drop_all(ThreadCache& cache) {
  enter_deferred(cache);
  drop_long_block(cache);
  for (unsigned c = 1, end = classes_end(cache); c < end; ++c) drop_class(cache, c);
  return_sheets(cache);
  return_loans(cache);
}

void close_gaps(ThreadCache& cache) {
  for (unsigned c = 1, end = classes_end(cache); c < end; ++c) {
    Bin& bin = cache.bins[c];
    const ColdBin& cold = cold_bin_of(cache, c);
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

// A bin that does not point into its loaded magazine is not believed: its blocks are lost, and
// nothing else.
void drop_left(ThreadCache& cache) {
  drop_long_block(cache);
  drop_deferred(cache);
  close_gaps(cache);
  return_loans(cache);
  for (unsigned c = 1, end = classes_end(cache); c < end; ++c) {
    const Bin& bin = cache.bins[c];
    const ColdBin& cold = cold_bin_of(cache, c);
    if (cold.loaded == nullptr) continue;
    bool is_sane = bin.top >= cold.loaded->slots && bin.top <= cold.loaded->slots + slots_of(cold);
    if (is_sane) drop_class(cache, c);
  }
  return_sheets(cache);
}

void shrink_class(ThreadCache& cache, unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  ColdBin& cold = cold_bin_of(cache, size_class);
  if (cold.loaded == nullptr || is_span_class(size_class)) return;
  std::uint32_t least = cache.own_blocks == 0 ? 1 : own_blocks(cache, size_class);
  std::uint32_t limit = cold.limit * 3u / 4;
  if (limit > kMagazineSlots) limit = kMagazineSlots;
  if (limit < least) limit = least;
  if (limit >= cold.limit) return;
  std::uint32_t count = count_of(bin, cold);
  std::uint64_t cost = cost_of(size_class, cold), own = own_part(cache, size_class, cold);
  cold.limit = static_cast<std::uint8_t>(limit);
  if (count > limit) {
    cold.loaded->count = count;
    set_bin(bin, cold, 0);
    hand_over_down_to(cache, size_class, cold.loaded, limit, cold.is_taken_from);
    count = limit;
  }
  set_bin(bin, cold, count);
  if (cold.length == Length::kPair) move_to(cache, size_class, Length::kWhole);
  subtract_held(cache, size_class, cost - cost_of(size_class, cold),
                own - own_part(cache, size_class, cold));
}

// Where blocks of all lengths find their pages: twice as much as the block has. The next one is to
// take these first.
[[gnu::noinline]] void give_up_spans(ThreadCache& cache, std::uint32_t slices) {
  std::uint32_t held = 0, given = 0;
  for (unsigned c = kFirstSpanClass; c < kClasses; ++c) held += slices_held(cache, c);
  if (held < kSpansWorthAsking) return;
  for (unsigned c = kClasses - 1; c >= kFirstSpanClass && given < 2 * slices; --c) {
    Bin& bin = cache.bins[c];
    const ColdBin& cold = cold_bin_of(cache, c);
    if (cold.loaded == nullptr) continue;
    given += slices_held(cache, c);
    std::uint32_t count = count_of(bin, cold);
    set_bin(bin, cold, 0);
    slab_give_back(c, cold.loaded->slots, count);
  }
}

}  // namespace rdmalloc
