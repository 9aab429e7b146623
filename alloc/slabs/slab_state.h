// The insides of the slabs, for the files that they are made of: slab.cc, sent_home.cc (what
// shards take for blocks that they sent home), slab_rebuild.cc (walks over everything: fork,
// counters).
#pragma once

#include "alloc/core/lock.h"
#include "alloc/core/order_for_fork.h"
#include "alloc/core/shard.h"
#include "alloc/slabs/slab.h"
#include "alloc/slabs/slab_lists.h"

namespace rdmalloc::slab_state {

// Giving back takes no lock, so a slab may stand in a bucket that is too full for it; it is moved
// when it is met.
struct alignas(128) SlabClass : SlabLists {
  Lock lock;
  // Written under the lock; read without it by slab_slices_held(), as a hint. Relaxed.
  std::atomic<std::uint32_t> slabs{0};
  std::atomic<std::uint8_t> asked{0};  // which other shard is asked next; a hint, relaxed
  // Blocks that the shard may take of others' slabs (sent_home.cc). Relaxed: what two threads count
  // at once may be lost.
  std::atomic<std::uint16_t> due{0};
  bool is_spare = false;  // counted in Spare::shards; under the lock
  // Takes and give-backs that found the slab empty or off the lists, written under the lock; what
  // slab_trim_idle() saw there last, and when it trimmed. Relaxed: hints.
  std::atomic<std::uint32_t> uses{0}, uses_at_last_look{0}, uses_when_trimmed{0};
};

SlabClass& slabs_of(unsigned shard, unsigned size_class);

// How many shards have more slabs with free blocks than kSlabsLeft, for each class: a line that is
// mostly read, so that where there are none no shard looks at the others'.
struct alignas(64) Spare {
  std::atomic<std::uint32_t> shards;  // relaxed: a hint
};
extern constinit Spare spare[kClasses];
// After a change of the lists, under the lock. A child whose fork comes between the two steps
// counts one too many, and looks in vain.
inline void note_spare(SlabClass& slabs, unsigned size_class) {
  bool is_spare = listed_in(slabs) > kSlabsLeft;
  if (is_spare == slabs.is_spare) [[likely]]
    return;
  if (is_spare) spare[size_class].shards.fetch_add(1, std::memory_order_relaxed);
  order_for_fork();
  slabs.is_spare = is_spare;
  order_for_fork();
  if (!is_spare) spare[size_class].shards.fetch_sub(1, std::memory_order_relaxed);
}

// Takes blocks of the slabs, none of them on pages that were never used. Under the class's lock.
std::uint32_t take_used(SlabClass& slabs, unsigned size_class, void** blocks, std::uint32_t wanted);
// slab_take_used_of_others() on more than few shards (sent_home.cc).
std::uint32_t take_due(unsigned shard, unsigned size_class, void** blocks, std::uint32_t wanted);

inline std::uint32_t words_of(const ClassInfo& info) {
  return (info.slab_blocks + 63) / 64;
}

// Under the lock.
inline void add_slabs(SlabClass& slabs, std::uint32_t more) {
  slabs.slabs.store(slabs.slabs.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}
inline void note_use(SlabClass& slabs) {
  slabs.uses.store(slabs.uses.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Whether `word` is a slab of this class. If so, it stays one of its shard while the lock of both
// is held, under which it was found.
inline bool is_slab_of(SpanWord word, unsigned size_class) {
  return word.kind == SpanKind::kSlab && word.size_class == size_class;
}

}  // namespace rdmalloc::slab_state
