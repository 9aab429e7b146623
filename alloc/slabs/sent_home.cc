// What more than four shards take of each other's slabs before pages of their own that are new: for
// two blocks of others' slabs that a shard's threads gave back it may take one. Where threads hand
// blocks on, what a shard has of its own goes up and down, and without this each came to have slabs
// for the most that it ever lacked. The lines that move are bounded by those that blocks moved
// which went home; what two shards take from each other becomes less each time; and where threads
// free what they allocated no shard looks at another.
#include <algorithm>

#include "alloc/pages/segments.h"
#include "alloc/slabs/slab.h"
#include "alloc/slabs/slab_state.h"

namespace rdmalloc {

using namespace slab_state;

namespace {

constexpr std::uint32_t kMostDue = 256;
constexpr auto kRelaxed = std::memory_order_relaxed;

// Whose the blocks are is seen by one of them.
[[gnu::noinline]] void note_sent(unsigned shard, unsigned size_class, const void* block,
                                 std::uint32_t count) {
  if (is_span_class(size_class) || slab_shard_of(block, size_class) == shard) return;
  std::atomic<std::uint16_t>& due = slabs_of(shard, size_class).due;
  std::uint32_t now = due.load(kRelaxed) + (count + 1) / 2;
  due.store(static_cast<std::uint16_t>(std::min(now, kMostDue)), kRelaxed);
}

}  // namespace

void slab_give_back_from(unsigned shard, unsigned size_class, void* const* blocks,
                         std::uint32_t count) {
  if (count != 0 && shard_count() > kFewShards) [[unlikely]]
    note_sent(shard, size_class, blocks[0], count);
  slab_give_back(size_class, blocks, count);
}

std::uint32_t slab_state::take_due(unsigned shard, unsigned size_class, void** blocks,
                                   std::uint32_t wanted) {
  SlabClass& own = slabs_of(shard, size_class);
  std::uint32_t due = own.due.load(kRelaxed), got = 0;
  if (due == 0 || !has_few_threads(shard)) return 0;
  unsigned others = shard_count() - 1, first = own.asked.load(kRelaxed), asked = 0;
  while (got == 0 && asked < std::min(others, kShardsAsked)) {
    unsigned other = other_shard(shard, first, ++asked, others + 1);
    SlabClass& theirs = slabs_of(other, size_class);
    bool is_near = are_near(shards[other], shards[shard]);
    if (!is_near || listed_in(theirs) == 0 || !theirs.lock.try_lock()) continue;
    got = take_used(theirs, size_class, blocks, wanted);
    theirs.lock.unlock();
  }
  if (got != 0) {
    shards[shard].steals.fetch_add(1, kRelaxed);
    --asked;  // it is asked first the next time
  }
  // A look in vain is one block's.
  due -= std::min(due, std::max(got, 1u));
  own.due.store(static_cast<std::uint16_t>(due), kRelaxed);
  own.asked.store(static_cast<std::uint8_t>((first + asked) % others), kRelaxed);
  return got;
}

}  // namespace rdmalloc
