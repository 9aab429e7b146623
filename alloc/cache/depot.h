// The depot: whole magazines on their way between threads, a lock-free stack for each class and
// shard; whole are those with ClassInfo::whole blocks and more. Bounded in bytes, for each class
// over all shards; what does not fit flows down to the slabs. One compare-and-swap moves a
// magazine. Beside each stack lies one that is not whole: the blocks that threads leave when they
// end or give a class up gather there until it is, so that threads that live shortly hand blocks on
// without a look at their slabs.
#pragma once

#include "alloc/cache/magazine.h"

namespace rdmalloc {

// Leaves a magazine with `count` blocks; false when the shard's share of the class is used up.
bool depot_put(unsigned shard, unsigned size_class, Magazine* magazine);
// Takes one, or nullptr.
Magazine* depot_take(unsigned shard, unsigned size_class);
// Leaves a magazine with some blocks, or gathers them with what others left, until it is whole;
// false, and the magazine is the caller's still, when the shard's share of the class is used up.
bool depot_put_partial(unsigned shard, unsigned size_class, Magazine* magazine);
// Takes what was left so, or nullptr.
Magazine* depot_take_partial(unsigned shard, unsigned size_class);
// Leaves what a thread does not want of a magazine: with what others left, or to the slabs.
void depot_put_back(unsigned shard, unsigned size_class, Magazine* magazine);
// The blocks of a magazine that its thread keeps go to what others left, as far as they fit, and
// else to the slabs.
void depot_put_some(unsigned shard, unsigned size_class, Magazine* magazine);
// Blocks go to the depot: as a magazine if it is whole, or was before blocks of other nodes left it
// and still has half as many; else with what others left. Where that is full, to the slabs.
// `is_taken_from`: whether the thread also takes blocks of the class. If it only frees them, they
// go to the shard that they are from, whose threads allocate them. Consumes the magazine.
void depot_hand_over(unsigned here, unsigned size_class, Magazine* magazine, bool is_taken_from);
// Blocks of other nodes leave the magazine for their slabs: in the depot of this shard, and in the
// cache of one of its threads, they would be handed for ever to threads that are far from them.
// Returns whether there were any, and all of them lay on top of the others.
bool depot_return_remote_blocks(unsigned shard, unsigned size_class, Magazine* magazine);
// Takes one from another shard of the same node, or nullptr; of blocks of up to 1 KiB also one that
// is not full, where no thread is, or anywhere with `takes_rests`. Asks `most` of them; *from
// remembers where to go on.
Magazine* depot_steal(unsigned shard, unsigned size_class, unsigned most, bool takes_rests,
                      std::uint8_t* from);
// An empty magazine for a thread of the shard, or nullptr; and one that it needs no more. They go
// round within the shard: what is drained of blocks here is filled here next.
Magazine* depot_take_empty(unsigned shard);
void depot_put_empty(unsigned shard, Magazine* magazine);
// The same of a pair.
Magazine* depot_take_pair();
void depot_put_pair(Magazine* pair);
// Looks at the shard's next class, in a circle, and sends half of its magazines to the slabs if no
// thread came for one since the last look and the shard holds more than its part of
// kDepotIdleBytes: one magazine now, the others with the next looks. Called for each full magazine
// that a thread hands over: what a program used in an earlier phase makes room as it works, without
// a purge thread. Returns whether a round through all classes has ended.
bool depot_look(unsigned shard);
// Empties every class of every shard that no thread used since the last call into the slabs; with
// `everything`, all of them. Called by the purge thread and rdmalloc_purge(), so that memory comes
// back when a program makes no further call. Returns whether something is left.
bool depot_age(bool everything);
// Empties all of it into the slabs. Any thread.
void depot_empty();
// Whether there is anything at all in it. For the purge thread that is about to sleep.
bool depot_is_empty();
// Blocks of the class in the depot now, at most; a moment's truth.
std::uint64_t depot_blocks(unsigned size_class);

// For cache/shards.cc. Makes the stacks of a shard that is not counted yet; false when there is no
// memory for it.
bool depot_make_shard(unsigned shard);
// After the number of shards rose: what lies above a shard's share goes to the slabs.
void depot_fit();

}  // namespace rdmalloc
