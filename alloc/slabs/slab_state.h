// The insides of the slabs, for the two files that they are made of: slab.cc and slab_rebuild.cc
// (walks over everything: fork, counters).
#pragma once

#include "alloc/core/lock.h"
#include "alloc/core/shard.h"
#include "alloc/slabs/slab.h"
#include "alloc/slabs/slab_lists.h"

namespace rdmalloc::slab_state {

// Giving back takes no lock, so a slab may stand in a bucket that is too full for it; it is moved
// when it is met.
struct alignas(128) SlabClass : SlabLists {
  Lock lock;
  std::uint32_t slabs = 0;
  std::atomic<std::uint8_t> asked{0};  // which other shard is asked next; a hint, relaxed
  // Takes and give-backs that found the slab empty or off the lists, written under the lock; what
  // slab_trim_idle() saw there last, and when it trimmed. Relaxed: hints.
  std::atomic<std::uint32_t> uses{0}, uses_at_last_look{0}, uses_when_trimmed{0};
};

SlabClass& slabs_of(unsigned shard, unsigned size_class);

inline std::uint32_t words_of(const ClassInfo& info) {
  return (info.slab_blocks + 63) / 64;
}

// Under the lock.
inline void note_use(SlabClass& slabs) {
  slabs.uses.store(slabs.uses.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Whether `word` is a slab of this class. If so, it stays one of its shard while the lock of both
// is held, under which it was found.
inline bool is_slab_of(SpanWord word, unsigned size_class) {
  return word.kind == SpanKind::kSlab && word.size_class == size_class;
}

}  // namespace rdmalloc::slab_state
