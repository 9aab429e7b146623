#include "alloc/cache/depot.h"

#include <cstring>
#include <utility>

#include "alloc/core/shard.h"
#include "alloc/os/os.h"
#include "alloc/os/topology.h"
#include "alloc/pages/segments.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {

constinit Pool<Magazine> magazines;

namespace {

struct alignas(64) Stack {
  TaggedStack<Magazine> full;
  // The magazine that is not full: its index, and above that how many blocks it holds. 0: none.
  std::atomic<std::uint64_t> partial;
  // Purge turn only.
  std::uint64_t partial_at_last_age;
  std::uint32_t tag_at_last_age;
  // See depot_look(). Relaxed: two threads that look at once pass a class by, or count one twice.
  std::atomic<std::uint32_t> tag_at_last_look;
  // Of class 0, which has no blocks: where the shard's latest look went, how many magazines of that
  // class are still to flow down, the bytes that this round's looks saw, and those of the round
  // before.
  std::atomic<std::uint32_t> next_look, flows_left;
  std::atomic<std::uint64_t> bytes_seen;
  std::atomic<std::uint64_t> bytes_last_round;
};
std::uint64_t word_of_partial(const Magazine* magazine) {
  return magazines.index_of(magazine) | std::uint64_t{magazine->count} << 32;
}
std::uint32_t blocks_of_partial(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}
// Of the first shard; those of the others are mapped as they come to be, and backed where used.
constinit Stack first_stacks[kClasses] = {};
static_assert(class_info(1).depot_max <= TaggedStack<Magazine>::kMost, "what a stack counts to");
constinit std::atomic<Stack*> stacks_of_shard[kShardLimit] = {};

Stack& stack_of(unsigned shard, unsigned size_class) {
  if (shard == 0) [[likely]]
    return first_stacks[size_class];
  // Acquire: pairs with the release in depot_make_shard().
  return stacks_of_shard[shard].load(std::memory_order_acquire)[size_class];
}

// Class 0 has no blocks; its stack is that of the empty magazines.
TaggedStack<Magazine>& empties_of(unsigned shard) {
  return stack_of(shard, 0).full;
}
constexpr std::uint32_t kEmptiesOfShard = 128;  // 64 KiB
// Bins come for one as they grow, on up to eight threads: one word for all shards, and never so
// many that the stack is full.
constinit TaggedStack<Magazine> pairs;
// Of several shards: that one takes from the pool at once, whose words all shards write. A page.
constexpr std::uint32_t kNewMagazines = 8;
static_assert(kNewMagazines * sizeof(Magazine) == 4096);

// Magazines of the class that a shard may keep: all shards together as many as one alone. None of
// spans where there is no other thread that they could be for: in the page heap slabs and blocks of
// all lengths find their pages (the pattern phases took 5 % more memory).
std::uint32_t share_of(unsigned shard, unsigned size_class) {
  std::uint32_t all = class_info(size_class).depot_max, count = shard_count();
  if (count == 1) [[likely]]
    return is_span_class(size_class) && shards[0].threads.load(std::memory_order_relaxed) <= 1
               ? 0
               : all;
  return all / count + (shard < all % count ? 1 : 0);
}

// Full magazines that the shard may have: one less where there is a partial one.
std::uint32_t most_full(unsigned shard, unsigned size_class) {
  std::uint32_t share = share_of(shard, size_class);
  bool has_partial = stack_of(shard, size_class).partial.load(std::memory_order_relaxed) != 0;
  return share - (has_partial && share != 0 ? 1 : 0);
}
// Full magazines, of 32 KiB, that another shard leaves one that is at work: one, but of long blocks
// as many as hold sixteen.
std::uint32_t magazines_left(unsigned size_class) {
  return class_info(size_class).whole > 8 ? 1 : 4;
}
// Without the partial one.
bool is_share_used_up(unsigned shard, unsigned size_class) {
  return stack_of(shard, size_class).full.head().count >= share_of(shard, size_class);
}

// Which of its stacks a shard uses, so that depot_fit() looks at no others: it is called for each
// shard that is made, and would take the line of each class of each shard. The first one's are not
// told apart.
void note_class(unsigned shard, unsigned size_class) {
  if (shard == 0) [[likely]]
    return;
  std::atomic<std::uint64_t>& word = shards[shard].depot_classes[size_class / 64];
  std::uint64_t bit = std::uint64_t{1} << size_class % 64;
  if ((word.load(std::memory_order_relaxed) & bit) == 0)
    word.fetch_or(bit, std::memory_order_relaxed);
}
static_assert(kClasses <= 128);
bool has_class(unsigned shard, unsigned size_class) {
  return shard == 0 ||
         (shards[shard].depot_classes[size_class / 64].load(std::memory_order_relaxed) >>
              size_class % 64 &
          1) != 0;
}

// On a thread's way, which needs an empty magazine soon: from the pool all shards would take theirs
// at one word.
void flow_down(unsigned shard, unsigned size_class, Magazine* magazine) {
  slab_give_back_from(shard, size_class, magazine->slots, magazine->count);
  magazine->count = 0;
  depot_put_empty(shard, magazine);
}
// Of a depot that is idle, or emptied.
void flow_down_and_free(unsigned size_class, Magazine* magazine) {
  slab_give_back(size_class, magazine->slots, magazine->count);
  magazine->count = 0;
  magazines.free(magazine);
}

std::uint64_t blocks_in(const Stack& stack, const ClassInfo& info) {
  return std::uint64_t{stack.full.head().count} * info.magazine_max +
         blocks_of_partial(stack.partial.load(std::memory_order_relaxed));
}

// Asks for the lines of a magazine that is gone through soon: where it was put down megabytes of
// blocks ago they are in no near cache, and the pops would wait for one after the other.
void fetch(const Magazine* magazine) {
  const char* line = reinterpret_cast<const char*>(magazine);
  for (const char* end = line + sizeof(Magazine); line != end; line += 64) __builtin_prefetch(line);
}

}  // namespace

bool depot_return_remote_blocks(unsigned shard, unsigned size_class, Magazine* magazine) {
  std::uint8_t here = shards[shard].node.load(std::memory_order_relaxed);
  void* away[kPairSlots];
  void** slots = magazine->slots;  // of a pair more than the array of one magazine has
  std::uint32_t sent = 0, kept = 0;
  bool are_on_top = true;
  for (std::uint32_t i = 0; i < magazine->count; ++i) {
    void* block = slots[i];
    unsigned home = slab_shard_of(block, size_class);
    bool is_near = shards[home].node.load(std::memory_order_relaxed) == here;
    are_on_top = are_on_top && !(is_near && sent != 0);
    (is_near ? slots[kept++] : away[sent++]) = block;
  }
  if (sent == 0) return false;
  magazine->count = kept;
  shards[shard].remote_returned.fetch_add(sent, std::memory_order_relaxed);
  slab_give_back(size_class, away, sent);
  return are_on_top;
}

bool depot_put(unsigned shard, unsigned size_class, Magazine* magazine) {
  note_class(shard, size_class);
  return stack_of(shard, size_class)
      .full.push(magazines.objects(), magazines.index_of(magazine), most_full(shard, size_class));
}

Magazine* depot_take(unsigned shard, unsigned size_class) {
  TaggedStack<Magazine>& full = stack_of(shard, size_class).full;
  std::uint32_t index = full.pop(magazines.objects());
  if (index == 0) return nullptr;
  // Not this one, which is begun at once, but the one after it. If another thread takes that, or
  // there is none (index 0 is no magazine, but memory), nothing is lost but eight loads.
  fetch(magazines.at(full.head().index));
  return magazines.at(index);
}

bool depot_put_partial(unsigned shard, unsigned size_class, Magazine* magazine) {
  // A partial one has fewer blocks: depot_put_some() fills it up to that.
  std::uint32_t whole = class_info(size_class).whole;
  if (magazine->count >= whole) return depot_put(shard, size_class, magazine);
  if (is_share_used_up(shard, size_class)) return false;
  note_class(shard, size_class);
  std::atomic<std::uint64_t>& partial = stack_of(shard, size_class).partial;
  for (;;) {
    std::uint64_t none = 0;
    // Release: pairs with the acquire in depot_take_partial(). seq_cst: see slab_note_change().
    if (partial.compare_exchange_strong(none, word_of_partial(magazine), std::memory_order_seq_cst,
                                        std::memory_order_relaxed))
      return true;
    Magazine* other = depot_take_partial(shard, size_class);
    if (other == nullptr) continue;
    // The smaller one's blocks go into the larger one, as far as they fit.
    if (other->count > magazine->count) std::swap(other, magazine);
    while (magazine->count < whole && other->count != 0)
      magazine->slots[magazine->count++] = other->slots[--other->count];
    if (magazine->count >= whole) {
      if (!depot_put(shard, size_class, magazine)) flow_down(shard, size_class, magazine);
      magazine = other;
      if (magazine->count == 0 || is_share_used_up(shard, size_class)) {
        flow_down(shard, size_class, magazine);
        return true;
      }
    } else {
      depot_put_empty(shard, other);
    }
  }
}

Magazine* depot_take_partial(unsigned shard, unsigned size_class) {
  std::atomic<std::uint64_t>& partial = stack_of(shard, size_class).partial;
  // Looked at first: a line that no thread writes stays with all that read it.
  if (partial.load(std::memory_order_relaxed) == 0) return nullptr;
  // Acquire: pairs with the release in depot_put_partial().
  auto index = static_cast<std::uint32_t>(partial.exchange(0, std::memory_order_acquire));
  return index == 0 ? nullptr : magazines.at(index);
}

void depot_put_back(unsigned shard, unsigned size_class, Magazine* magazine) {
  depot_put_partial(shard, size_class, magazine) ? slab_note_change()
                                                 : flow_down(shard, size_class, magazine);
}

void depot_put_some(unsigned shard, unsigned size_class, Magazine* magazine) {
  if (os::node_count() != 1) [[unlikely]]
    depot_return_remote_blocks(shard, size_class, magazine);
  if (magazine->count == 0) return;
  Magazine* there = depot_take_partial(shard, size_class);
  if (there == nullptr && !is_share_used_up(shard, size_class)) {
    there = depot_take_empty(shard);
    if (there != nullptr) there->count = 0;
  }
  if (there != nullptr) {
    std::uint32_t room = class_info(size_class).whole - there->count;
    std::uint32_t moved = magazine->count < room ? magazine->count : room;
    magazine->count -= moved;
    std::memcpy(there->slots + there->count, magazine->slots + magazine->count,
                moved * sizeof(void*));
    there->count += moved;
  }
  slab_give_back_from(shard, size_class, magazine->slots, magazine->count);
  magazine->count = 0;
  if (there == nullptr) return;
  depot_put_back(shard, size_class, there);
}

// A new magazine; those beside it are the shard's next ones.
[[gnu::cold, gnu::noinline]] static Magazine* take_new(unsigned shard) {
  std::uint32_t count = kNewMagazines;
  Magazine* first = magazines.allocate_some(&count);
  while (count > 1) depot_put_empty(shard, first + --count);
  return first;
}

Magazine* depot_take_empty(unsigned shard) {
  std::uint32_t index = empties_of(shard).pop(magazines.objects());
  if (index != 0) return magazines.at(index);
  if (shard_count() == 1) [[likely]]
    return magazines.allocate();
  return take_new(shard);
}

void depot_put_empty(unsigned shard, Magazine* magazine) {
  if (!empties_of(shard).push(magazines.objects(), magazines.index_of(magazine), kEmptiesOfShard))
    magazines.free(magazine);
}

Magazine* depot_take_pair() {
  std::uint32_t index = pairs.pop(magazines.objects());
  return index != 0 ? magazines.at(index) : magazines.allocate_new(2);
}

void depot_put_pair(Magazine* pair) {
  pairs.push(magazines.objects(), magazines.index_of(pair));
}

Magazine* depot_steal(unsigned shard, unsigned size_class, unsigned most, bool takes_rests,
                      std::uint8_t* from) {
  unsigned count = shard_count(), asked = 0;
  std::uint8_t node = shards[shard].node.load(std::memory_order_relaxed);
  bool is_small = class_info(size_class).slab_slices == 1 && !is_span_class(size_class);
  bool may_beyond = count <= kFewShards && may_take_beyond(shard, size_class);
  while (asked < most && asked + 1 < count) {
    unsigned other = other_shard(shard, *from, ++asked, count);
    if (shards[other].node.load(std::memory_order_relaxed) != node) continue;
    // Looked at before it is written: an empty stack's line stays with the threads that use it.
    Stack& theirs = stack_of(other, size_class);
    TaggedStack<Magazine>::Head head = theirs.full.head();
    if (head.count == 0) {
      // What threads left that ended, of small blocks; not what those at work gave up for a moment.
      bool may = is_small
                     ? takes_rests || shards[other].threads.load(std::memory_order_relaxed) == 0
                     : may_beyond;
      Magazine* partial = may ? depot_take_partial(other, size_class) : nullptr;
      if (partial == nullptr) continue;
      if (!is_small) note_block_beyond(shard, size_class);
      shards[shard].steals.fetch_add(1, std::memory_order_relaxed);
      return partial;
    }
    // The few that a shard at work has stay, above 1 KiB, unless there are few shards
    // (may_take_beyond): two that took magazines from each other did so for ever. Small blocks go
    // on: sh8 took a tenth more memory without.
    bool is_theirs = !is_small && head.count <= magazines_left(size_class) &&
                     head.tag != theirs.tag_at_last_look.load(std::memory_order_relaxed) &&
                     !is_left(shards[other]);
    if (is_theirs && !may_beyond) continue;
    if (Magazine* magazine = depot_take(other, size_class)) {
      if (is_theirs) note_block_beyond(shard, size_class);
      *from = static_cast<std::uint8_t>((*from + asked - 1) % (count - 1));  // it may have more
      shards[shard].steals.fetch_add(1, std::memory_order_relaxed);
      return magazine;
    }
  }
  *from = static_cast<std::uint8_t>((*from + asked) % (count - 1));
  return nullptr;
}

namespace {

// Sends one magazine of an idle class down, of `left`: the caller is a free, and half a class may
// be dozens of them.
void flow_one(unsigned shard, unsigned size_class, std::uint32_t left) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Stack& stack = stack_of(shard, size_class);
  if (Magazine* magazine = depot_take(shard, size_class)) flow_down(shard, size_class, magazine);
  stack.tag_at_last_look.store(stack.full.head().tag, kRelaxed);
  stack_of(shard, 0).flows_left.store(left - 1, kRelaxed);
  if (left == 1) slab_trim_idle(shard, size_class);
}

void look_at_next(unsigned shard, Stack& round) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  unsigned size_class = round.next_look.load(kRelaxed) + 1;
  if (size_class >= kClasses) {
    round.bytes_last_round.store(round.bytes_seen.load(kRelaxed), kRelaxed);
    round.bytes_seen.store(0, kRelaxed);
    size_class = 1;
  }
  round.next_look.store(size_class, kRelaxed);
  const ClassInfo& info = class_info(size_class);
  Stack& stack = stack_of(shard, size_class);
  std::uint64_t bytes = blocks_in(stack, info) * info.block_bytes;
  std::uint32_t tag = stack.full.head().tag;
  round.bytes_seen.store(round.bytes_seen.load(kRelaxed) + bytes, kRelaxed);
  if (tag != stack.tag_at_last_look.load(kRelaxed))
    return stack.tag_at_last_look.store(tag, kRelaxed);
  if (bytes != 0 && round.bytes_last_round.load(kRelaxed) > kDepotIdleBytes / shard_count()) {
    // Half of it, the larger one: what comes back to the class soon finds the rest, and what
    // doesn't has nothing after a few rounds.
    if (std::uint32_t full = stack.full.head().count)
      return flow_one(shard, size_class, (full + 1) / 2);
    if (Magazine* magazine = depot_take_partial(shard, size_class))
      flow_down(shard, size_class, magazine);
  }
  slab_trim_idle(shard, size_class);
}

}  // namespace

bool depot_look(unsigned shard) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Stack& round = stack_of(shard, 0);
  unsigned latest = round.next_look.load(kRelaxed);
  std::uint32_t left = round.flows_left.load(kRelaxed);
  const Stack& stack = stack_of(shard, latest);
  if (left != 0 && stack.full.head().tag == stack.tag_at_last_look.load(kRelaxed)) {
    flow_one(shard, latest, left);
  } else {
    round.flows_left.store(0, kRelaxed);  // of a class that is in use again
    look_at_next(shard, round);
  }
  return round.next_look.load(kRelaxed) == kClasses - 1 && round.flows_left.load(kRelaxed) == 0;
}

void depot_hand_over(unsigned here, unsigned size_class, Magazine* magazine, bool is_taken_from) {
  std::uint32_t whole = class_info(size_class).whole;
  bool is_whole = magazine->count >= whole;
  std::uint32_t looks = magazine->count / whole;  // as often as so many blocks come by
  if (magazine->count != 0 && os::node_count() != 1) [[unlikely]]
    depot_return_remote_blocks(here, size_class, magazine);
  if (magazine->count != 0) {
    is_whole = is_whole && magazine->count * 2 > whole;
    unsigned shard = here;
    if (!is_taken_from && shard_count() != 1) [[unlikely]]
      shard = slab_shard_of(magazine->slots[0], size_class);
    bool is_put = is_whole ? depot_put(shard, size_class, magazine)
                           : depot_put_partial(shard, size_class, magazine);
    if (!is_put) {
      slab_give_back_from(here, size_class, magazine->slots, magazine->count);
      magazine->count = 0;
    }
    // Not for each rest that an ending thread leaves.
    for (std::uint32_t i = 0; is_whole && i < looks; ++i) depot_look(here);
    if (is_put) return slab_note_change();
  }
  depot_put_empty(here, magazine);
}

bool depot_age(bool everything) {
  bool is_something_left = false;
  for (unsigned c = 1; c < kClasses; ++c) {
    bool is_idle = false;
    for (unsigned shard = 0; shard < shard_count(); ++shard) {
      Stack& stack = stack_of(shard, c);
      TaggedStack<Magazine>::Head head = stack.full.head();
      // The tag counts pushes and pops: unchanged means idle.
      if (everything || head.tag == stack.tag_at_last_age) {
        while (Magazine* magazine = depot_take(shard, c)) flow_down_and_free(c, magazine);
        is_idle = true;
        head = stack.full.head();
      } else {
        is_something_left = true;
      }
      if (head.tag != stack.tag_at_last_age) stack.tag_at_last_age = head.tag;
      // The same magazine with as many blocks: no thread came, or it doesn't matter.
      std::uint64_t partial = stack.partial.load(std::memory_order_relaxed);
      if (partial != 0 && (everything || partial == stack.partial_at_last_age)) {
        if (Magazine* magazine = depot_take_partial(shard, c)) flow_down_and_free(c, magazine);
        is_idle = true;
      } else if (partial != 0) {
        is_something_left = true;
      }
      if (partial != stack.partial_at_last_age) stack.partial_at_last_age = partial;
    }
    if (is_idle) slab_trim(c);
  }
  return is_something_left;
}

void depot_empty() {
  for (unsigned c = 1; c < kClasses; ++c) {
    for (unsigned shard = 0; shard < shard_count(); ++shard) {
      while (Magazine* magazine = depot_take(shard, c)) flow_down_and_free(c, magazine);
      if (Magazine* magazine = depot_take_partial(shard, c)) flow_down_and_free(c, magazine);
    }
    slab_trim(c);
  }
}

std::uint64_t depot_blocks(unsigned size_class) {
  std::uint64_t blocks = 0;
  for (unsigned shard = 0; shard < shard_count(); ++shard) {
    blocks += blocks_in(stack_of(shard, size_class), class_info(size_class));
  }
  return blocks;
}

bool depot_is_empty() {
  for (unsigned c = 1; c < kClasses; ++c)
    if (depot_blocks(c) != 0) return false;
  return true;
}

bool depot_make_shard(unsigned shard) {
  if (stacks_of_shard[shard].load(std::memory_order_relaxed) != nullptr) return true;
  std::uintptr_t base = 0;
  if (os::map_metadata(sizeof(Stack) * kClasses, &base) != 0) return false;
  // Zeroed, as the first ones are. Release: see stack_of().
  stacks_of_shard[shard].store(reinterpret_cast<Stack*>(base), std::memory_order_release);
  return true;
}

void depot_fit() {
  for (unsigned c = 1; c < kClasses; ++c) {
    for (unsigned shard = 0; shard < shard_count(); ++shard) {
      if (!has_class(shard, c)) continue;
      TaggedStack<Magazine>& full = stack_of(shard, c).full;
      while (full.head().count > most_full(shard, c)) {
        Magazine* magazine = depot_take(shard, c);
        if (magazine == nullptr) break;
        flow_down_and_free(c, magazine);
      }
      if (share_of(shard, c) != 0) continue;
      if (Magazine* magazine = depot_take_partial(shard, c)) flow_down_and_free(c, magazine);
    }
  }
}

}  // namespace rdmalloc
