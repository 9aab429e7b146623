#include "alloc/cache/shards.h"

#include "alloc/cache/bin_table.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/lock.h"
#include "alloc/core/options.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/limits.h"
#include "alloc/pages/segments.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// Most of what a shard at work has free is taken by others only where an allocation would fail
// otherwise: before that each takes new pages. So with RDMALLOC_LIMIT, and in a small cgroup, there
// is one shard at most for each so many bytes. At a limit of 32 MiB two shards had 62 MiB resident
// at most, one 47 (take_back_cgroup).
constexpr std::uint64_t kLimitOfShard = std::uint64_t{64} << 20;

bool may_have_shards(unsigned count) {
  return count <= dirty_limits.backed_bytes.load(std::memory_order_relaxed) / kLimitOfShard;
}

// A shard. Under it metadata is mapped, and the central page heap's lock taken: no thread that
// holds that one comes here.
constinit Lock making;
// The shard of each place, and 1; 0: none yet. Written under the lock. Release, once the shard is
// made and counted: pairs with the acquire in shard_here().
constinit std::atomic<std::uint16_t> shard_of_place[kShardLimit] = {};

void set_shard(unsigned place, unsigned shard) {
  shard_of_place[place].store(static_cast<std::uint16_t>(shard + 1), std::memory_order_release);
}
void set_node(unsigned shard, unsigned place) {
  auto node = static_cast<std::uint8_t>(os::node_of_place(place));
  shards[shard].node.store(node, std::memory_order_relaxed);
}

unsigned make_shard(unsigned place) {
  unsigned made = 0;
  {
    LockGuard guard(making);
    // The first one is that of the first thread, who knew no place yet.
    unsigned first = os::first_place();
    if (shard_of_place[first].load(std::memory_order_relaxed) == 0) {
      set_node(0, first);
      set_shard(first, 0);
    }
    if (unsigned known = shard_of_place[place].load(std::memory_order_relaxed)) return known - 1;
    unsigned count = shard_count();
    // A child may have one more than places: one that was counted and not yet a place's.
    if (count < kShardLimit && may_have_shards(count + 1) && slab_make_shard(count) &&
        depot_make_shard(count) && page_heap_make_shard(count)) {
      made = count;
      set_node(made, place);
      // Release: pairs with the acquire in shard_count(). Before a thread can be there: a
      // child born between the two would have a thread in a shard that it does not know of.
      detail::shard_count.store(count + 1, std::memory_order_release);
      set_shard(place, made);
    } else {
      shard_of_place[place].store(1, std::memory_order_relaxed);
    }
  }
  // The others' shares are smaller from now on.
  if (made != 0) {
    limits_note_shards();
    depot_fit();
  }
  return made;
}

}  // namespace

unsigned shard_here() {
  if (os::place_count() == 1) return 0;
  unsigned place = os::this_place();
  unsigned known = shard_of_place[place].load(std::memory_order_acquire);
  return known != 0 ? known - 1 : make_shard(place);
}

void shards_learn() {
  os::topology_learn(options().topology);
  if (os::node_count() != 1) bin_table_note_nodes();
  if (options().topology.mode != os::TopologyMode::kOne && !limits_are_known())
    limits_take(os::memory_limits());
}

void shards_after_fork() {
  // A shard is whole once it is counted, and making one may be repeated after half of it.
  making.reset();
}

}  // namespace rdmalloc
