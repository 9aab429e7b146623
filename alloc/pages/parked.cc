#include "alloc/pages/parked.h"

#include "alloc/fork.h"
#include "alloc/os/topology.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

constexpr unsigned kParks = 4;  // of a shard: of its threads as many can be here at once
constexpr unsigned kRuns = 8;   // with all that belongs to them one cache line
// 2 MiB. Two threads with a block each, of all lengths: the page heap's lock was taken 250 and 321
// times for 1,000 blocks. With 1 MiB it was 806 times, with no parks 2,000.
constexpr std::uint32_t kHoldsMost = 32;
// Of the ceiling for dirty memory all parks together hold a quarter at most.
constexpr std::uint64_t kCeilingShare = 4;
// Meetings between two ticks of the purge thread, which are a second apart at most, that open the
// parks. A rank whose helper threads allocate now and then has fewer: it keeps one place for all
// its buffers, where parks would keep one for each length.
constexpr std::uint32_t kMeetings = 16;
// Generations are drawn in blocks of so many, with the page heap's lock. What remains in a park is
// older than what others draw meanwhile: who was used last is known as exactly as that.
constexpr std::uint64_t kGenerations = 64;

struct alignas(64) Park {
  Lock lock;  // for all that follows; but the atomics are read by anybody, relaxed, as hints
  std::atomic<std::uint16_t> lengths{0};  // bit n - 1: a run of n slices is there
  std::atomic<std::uint8_t> slices{0};
  std::atomic<std::uint8_t> count{0};
  std::atomic<std::uint64_t> hits{0};
  std::uint64_t next_generation = 0;  // a multiple of kGenerations: none left
  std::uint8_t length[kRuns] = {};
  SliceIndex run[kRuns] = {};  // oldest first
};
static_assert(sizeof(Park) == 64 && kParkedMost <= 16);
constinit Park parks[kShardLimit][kParks] = {};

// Relaxed throughout: settings, and a count that is a guess anyway.
constinit std::atomic<std::uint32_t> meetings{0};
constinit std::atomic<std::uint32_t> allowed_slices{kHoldsMost};
constinit std::atomic<std::uint64_t> ceiling_bytes{std::uint64_t{512} << 20};
constinit std::atomic<bool> keeps_nothing{false};
constinit std::uint64_t hits_at_age = 0;  // with the purge turn

void close() {
  detail::open_slices.store(0, std::memory_order_relaxed);
  meetings.store(0, std::memory_order_relaxed);
}

template <class Function>
void for_each_park(Function function) {
  for (unsigned shard = 0; shard < shard_count(); ++shard)
    for (Park& park : parks[shard]) function(park);
}

// All below with the park's lock.

unsigned count_of(const Park& park) {
  return park.count.load(std::memory_order_relaxed);
}
unsigned slices_of(const Park& park) {
  return park.slices.load(std::memory_order_relaxed);
}

// After a change of its list.
void sum_up(Park& park, unsigned count) {
  unsigned slices = 0, lengths = 0;
  for (unsigned i = 0; i < count; ++i) {
    slices += park.length[i];
    lengths |= 1u << (park.length[i] - 1);
  }
  park.count.store(static_cast<std::uint8_t>(count), std::memory_order_relaxed);
  park.slices.store(static_cast<std::uint8_t>(slices), std::memory_order_relaxed);
  park.lengths.store(static_cast<std::uint16_t>(lengths), std::memory_order_relaxed);
}

void strike(Park& park, unsigned index) {
  unsigned count = count_of(park) - 1;
  for (unsigned i = index; i < count; ++i) {
    park.length[i] = park.length[i + 1];
    park.run[i] = park.run[i + 1];
  }
  sum_up(park, count);
}

std::uint64_t next_generation(Park& park) {
  if (park.next_generation % kGenerations == 0) {
    LockGuard guard(heap.lock);
    std::uint64_t block = heap.next_generation / kGenerations + 1;
    heap.next_generation = (block + 1) * kGenerations - 1;
    park.next_generation = block * kGenerations + 1;
  }
  return park.next_generation++;
}

// As publish_locked() does it; but its first slice is known to all of them still.
void publish(SliceIndex slice, std::uint32_t slices, std::uint64_t generation) {
  Span& span = arena.span(slice);
  for (SliceIndex s = slice; s < slice + slices; ++s)
    arena.class_map[s].store(kLargeClass, std::memory_order_relaxed);
  span.generation.store(generation, std::memory_order_relaxed);
  // Released last: while the word says kParked, a fork child takes the run back.
  span.store({SpanKind::kLarge, kLargeClass, false, slices});
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Makes a parked run the free span that page_heap_free() would have made of it. With the page
// heap's lock too. `near`: see AgeList.
void return_locked(SliceIndex slice, std::uint32_t slices, SliceIndex near = 0) {
  Span& span = arena.span(slice);
  heap.large_spans -= 1;
  add_used(-static_cast<std::int64_t>(slices));
  span.store({SpanKind::kReserved, 0, false, slices});
  join_and_insert(slice, slices,
                  slices >= kBufferSlices ? SpanKind::kFreeSpared : SpanKind::kFreeDirty,
                  Age::kOldest, near);
}

// Gives its oldest runs to the page heap. The locks are held together: at no moment is a run
// nobody's. `are_old`: among the oldest free spans they are looked for by age, not the youngest.
std::uint32_t return_oldest(Park& park, unsigned runs, bool are_old = false) {
  if (runs == 0) return 0;
  std::uint32_t slices = 0;
  LockGuard guard(heap.lock);
  for (; runs != 0; --runs) {
    std::uint32_t length = park.length[0];
    slices += length;
    SliceIndex slice = park.run[0];
    strike(park, 0);
    return_locked(slice, length, are_old ? heap.dirty_by_age.oldest() : 0);
  }
  return slices;
}

SliceIndex take_from(Park& park, std::uint32_t slices) {
  for (unsigned i = count_of(park); i-- != 0;) {
    if (park.length[i] != slices) continue;
    SliceIndex slice = park.run[i];
    std::uint64_t generation = next_generation(park);
    strike(park, i);
    publish(slice, slices, generation);
    park.hits.store(park.hits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return slice;
  }
  return 0;
}

// How many of the oldest have to go for one of that length.
unsigned in_the_way(const Park& park, std::uint32_t slices, std::uint32_t most) {
  unsigned runs = count_of(park) == kRuns ? 1 : 0;
  unsigned left = slices_of(park);
  for (unsigned i = 0; i < runs; ++i) left -= park.length[i];
  while (left + slices > most && runs < count_of(park)) left -= park.length[runs++];
  return runs;
}

bool has_room(const Park& park, std::uint32_t slices, std::uint32_t most) {
  return count_of(park) < kRuns && slices_of(park) + slices <= most;
}

Parking put_into(unsigned shard, unsigned index, SliceIndex slice, std::uint64_t seen,
                 std::uint32_t most) {
  Park& park = parks[shard][index];
  Span& span = arena.span(slice);
  std::uint32_t slices = unpack(seen).slices;
  std::uint32_t returned = return_oldest(park, in_the_way(park, slices, most));
  // The class says which park.
  SpanWord word = {SpanKind::kParked,
                   static_cast<std::uint8_t>(index),
                   false,
                   slices,
                   0,
                   static_cast<std::uint8_t>(shard)};
  if (!span.word.compare_exchange_strong(seen, pack(word), std::memory_order_acq_rel))
    return Parking::kNotInUse;
  // Release: as in page_heap_free().
  for (SliceIndex s = slice; s < slice + slices; ++s)
    arena.class_map[s].store(0, std::memory_order_release);
  span.freed_ms = now_ms();
  if (span.reach < slices) span.reach = slices;
  unsigned count = count_of(park);
  park.run[count] = slice;
  park.length[count] = static_cast<std::uint8_t>(slices);
  sum_up(park, count + 1);
  return returned != 0 ? Parking::kExchanged : Parking::kParked;
}

// Takes a park of the shard for a run, one with room for it if that can be had. kParks: none.
unsigned choose_and_lock(unsigned shard, std::uint32_t slices, std::uint32_t most) {
  unsigned own = thread_id() % kParks;
  for (unsigned i = 0; i < kParks; ++i) {
    unsigned index = (own + i) % kParks;
    Park& park = parks[shard][index];
    if (!has_room(park, slices, most) || !park.lock.try_lock()) continue;
    if (has_room(park, slices, most)) return index;
    park.lock.unlock();
  }
  return parks[shard][own].lock.try_lock() ? own : kParks;
}

}  // namespace

namespace detail {
constinit std::atomic<std::uint32_t> open_slices{0};
}

void parks_note_meeting() {
  if (detail::open_slices.load(std::memory_order_relaxed) != 0) return;
  if (meetings.fetch_add(1, std::memory_order_relaxed) + 1 < kMeetings) return;
  detail::open_slices.store(allowed_slices.load(std::memory_order_relaxed),
                            std::memory_order_relaxed);
}

SliceIndex park_take(unsigned shard, std::uint32_t slices) {
  unsigned own = thread_id() % kParks;
  for (unsigned i = 0; i < kParks; ++i) {
    Park& park = parks[shard][(own + i) % kParks];
    if ((park.lengths.load(std::memory_order_relaxed) >> (slices - 1) & 1) == 0) continue;
    if (!park.lock.try_lock()) continue;
    LockGuard guard(park.lock, LockGuard::Held{});
    if (SliceIndex slice = take_from(park, slices)) return slice;
  }
  return 0;
}

Parking park_put(unsigned shard, SliceIndex slice) {
  const Span& span = arena.span(slice);
  std::uint64_t seen = span.word.load(std::memory_order_acquire);
  SpanWord word = unpack(seen);
  // An array that grew leaves no place to come back to, as in left_by(). Pages of another node are
  // for the threads there.
  if (word.kind != SpanKind::kLarge || !may_be_parked(word.slices) || span.has_grown)
    return Parking::kRefused;
  if (os::node_count() != 1 && span.node != shards[shard].node.load(std::memory_order_relaxed))
    return Parking::kRefused;
  std::uint32_t most = detail::open_slices.load(std::memory_order_relaxed);
  unsigned index = choose_and_lock(shard, word.slices, most);
  if (index == kParks) return Parking::kRefused;
  LockGuard guard(parks[shard][index].lock, LockGuard::Held{});
  return put_into(shard, index, slice, seen, most);
}

std::uint64_t parks_return(std::uint32_t least_ms) {
  std::uint64_t slices = 0;
  std::uint32_t now = now_ms();
  for_each_park([&](Park& park) {
    if (count_of(park) == 0) return;
    LockGuard guard(park.lock);
    unsigned runs = 0;
    while (runs < count_of(park) &&
           (least_ms == 0 ||
            static_cast<std::int32_t>(now - least_ms - arena.span(park.run[runs]).freed_ms) >= 0))
      ++runs;
    slices += return_oldest(park, runs, least_ms != 0);
  });
  return slices;
}

bool parks_return_run(SliceIndex slice) {
  SpanWord word = arena.span(slice).load();
  if (word.kind != SpanKind::kParked) return false;
  Park& park = parks[word.shard][word.size_class];
  LockGuard guard(park.lock);
  for (unsigned i = 0; i < count_of(park); ++i) {
    if (park.run[i] != slice) continue;
    std::uint32_t slices = park.length[i];
    LockGuard heap_guard(heap.lock);
    strike(park, i);
    return_locked(slice, slices);
    return true;
  }
  return false;
}

void parks_age(std::uint32_t decay_ms) {
  parks_return(decay_ms);
  ParkCounters now = park_counters();
  if (now.slices == 0 && now.hits == hits_at_age) close();
  hits_at_age = now.hits;
}

void parks_set_decay_ms(std::uint64_t decay_ms) {
  keeps_nothing.store(decay_ms == 0, std::memory_order_relaxed);
  parks_fit();
}

void parks_set_ceiling(std::uint64_t bytes) {
  ceiling_bytes.store(bytes, std::memory_order_relaxed);
  parks_fit();
}

void parks_fit() {
  std::uint64_t slices =
      ceiling_bytes.load(std::memory_order_relaxed) / kCeilingShare / kParks / shard_count() >>
      kSliceShift;
  if (slices > kHoldsMost) slices = kHoldsMost;
  if (keeps_nothing.load(std::memory_order_relaxed)) slices = 0;
  allowed_slices.store(static_cast<std::uint32_t>(slices), std::memory_order_relaxed);
  if (detail::open_slices.load(std::memory_order_relaxed) != 0)
    detail::open_slices.store(static_cast<std::uint32_t>(slices), std::memory_order_relaxed);
}

ParkCounters park_counters() {
  ParkCounters counters = {};
  for_each_park([&](const Park& park) {
    counters.slices += slices_of(park);
    counters.runs += count_of(park);
    counters.hits += park.hits.load(std::memory_order_relaxed);
  });
  return counters;
}

std::uint64_t parked_slices() {
  return park_counters().slices;
}

void parks_after_fork(const Forker& forker) {
  close();
  // Of all shards, also of those that are not counted yet: parks_stop() holds them too.
  bool any = false;
  for (auto& of_shard : parks)
    for (Park& park : of_shard) any |= park.lock.is_orphaned(forker);
  if (any) {
    // Not by the lists, which may be half changed. Their locks are freed after that: a child of
    // this child, which finds one free, believes the list.
    LockGuard guard(heap.lock);
    SliceIndex end = heap.frontier.load(std::memory_order_relaxed);
    for (SliceIndex slice = 1; slice < end;) {
      SpanWord word = arena.span(slice).load();
      if (word.kind == SpanKind::kParked &&
          parks[word.shard][word.size_class].lock.is_orphaned(forker)) {
        for (SliceIndex s = slice; s < slice + word.slices; ++s)
          arena.class_map[s].store(0, std::memory_order_relaxed);
        arena.span(slice).freed_ms = now_ms();
        return_locked(slice, word.slices);
      }
      slice += word.slices;
    }
  }
  for (auto& of_shard : parks) {
    for (Park& park : of_shard) {
      if (park.lock.owner() == 0) {
        if (count_of(park) == 0) continue;
        LockGuard guard(park.lock);
        return_oldest(park, count_of(park));
      } else if (park.lock.is_orphaned(forker)) {
        sum_up(park, 0);
        order_for_fork();
        park.lock.reset();
      }
    }
  }
}

void parks_stop() {
  for (auto& of_shard : parks)
    for (Park& park : of_shard) park.lock.lock();
}

void parks_go_on() {
  for (auto& of_shard : parks)
    for (Park& park : of_shard) park.lock.unlock();
}

bool parks_are_valid() {
  std::uint64_t listed = 0, found = 0;
  for (unsigned shard = 0; shard < kShardLimit; ++shard) {
    for (unsigned index = 0; index < kParks; ++index) {
      const Park& park = parks[shard][index];
      unsigned slices = 0, lengths = 0;
      for (unsigned i = 0; i < count_of(park); ++i) {
        SpanWord word = arena.span(park.run[i]).load();
        if (word.kind != SpanKind::kParked || word.slices != park.length[i] ||
            word.shard != shard || word.size_class != index)
          return false;
        slices += word.slices;
        lengths |= 1u << (word.slices - 1);
        ++listed;
      }
      if (slices != slices_of(park) || slices > kHoldsMost ||
          lengths != park.lengths.load(std::memory_order_relaxed))
        return false;
    }
  }
  SliceIndex end = heap.frontier.load(std::memory_order_relaxed);
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (word.kind == SpanKind::kParked) ++found;
    slice += word.slices;
  }
  return found == listed;
}

}  // namespace rdmalloc
