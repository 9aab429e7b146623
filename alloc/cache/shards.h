// Which shard a thread works in, and the making of shards (core/shard.h).
#pragma once

namespace rdmalloc {

// The shard of the place that the calling thread runs at, made if there is none yet; 0 when no
// metadata is to be had for it.
unsigned shard_here();

// Learns which processors meet where, and how much memory there is, if that is not known. Opens
// files, and so takes low descriptors for a moment: while the program has one thread, and not from
// malloc.
void shards_learn();

// For the child of a fork, before any cache is reclaimed.
void shards_after_fork();

}  // namespace rdmalloc
