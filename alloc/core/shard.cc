#include "alloc/core/shard.h"

namespace rdmalloc {

constinit Shard shards[kShardLimit] = {};

namespace detail {
constinit std::atomic<std::uint32_t> shard_count{1};
}

}  // namespace rdmalloc
