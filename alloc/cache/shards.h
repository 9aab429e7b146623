// Which shard a thread works in, and the making of shards (core/shard.h).
#pragma once

#include <cstdint>

#include "alloc/core/lock.h"
#include "alloc/core/shard.h"

namespace rdmalloc {

// The shard of the place that the calling thread runs at, made if there is none yet; 0 when no
// metadata is to be had for it.
unsigned shard_here();

// For the child of a fork, before any cache is reclaimed.
void shards_after_fork(const Forker& forker);

}  // namespace rdmalloc
