// What a pool will look like, and how much of it fits.
//
//   memory:  small buffers, then large ones, each whole pages
//            local access: none crosses a multiple of piece_bytes, and each piece is registered as
//            one (in most domains all of it is one piece)
//            remote access: each buffer is registered by itself (I13)
#pragma once

#include "alloc/for_regcache.h"
#include "regcache/pools/buffer_pool.h"

namespace rdmalloc::regcache {

// Longer buffers are no business of pools; keeps all sums below 2^64.
inline constexpr std::size_t kLongestBuffer = std::size_t{1} << 30;

struct PoolPlan {
  std::size_t length[kSides];  // of one buffer
  std::uint64_t count[kSides];
  std::uint32_t access;
  bool is_remote;
  std::size_t alignment;      // of the memory, bytes
  std::uint64_t piece_bytes;  // with local access
  std::uint64_t budget_bytes;

  std::uint64_t total() const { return count[kSmall] + count[kLarge]; }
};

// What is left for a pool, and who leaves no more.
struct PoolRoom {
  std::uint64_t bytes;
  std::uint64_t registrations;  // with each domain
  const char* bytes_by;
  const char* registrations_by;
};

// The beginning of a warning; prints one if `warns`, and returns the error.
Message because();
int refuse(bool warns, int error, const Message& why);

// Fills *plan, and checks what fewer buffers would not cure; says so if `warns`.
int plan_pool(rdmalloc_domain* const* domains, std::size_t domain_count,
              const rdmalloc_pool_attr* attr, bool warns, PoolPlan* plan);

// What the budget, RDMALLOC_LIMIT and the domains leave now.
PoolRoom room_for(const PoolPlan& plan, rdmalloc_domain* const* domains, std::size_t domain_count);

// How much of the plan fits there, in its proportion: *fitting gets the plan with fewer buffers.
void fit_pool(const PoolPlan& plan, const PoolRoom& room, PoolPlan* fitting);

// Where the buffers lie: calls of next(side), first for all small ones, give their offsets.
class PoolLayout {
 public:
  explicit PoolLayout(const PoolPlan& plan) : plan_(plan) {}
  std::uint64_t next(Side side);
  // The same for `count` buffers at once.
  void skip(Side side, std::uint64_t count);
  // Behind the last one.
  std::uint64_t end() const { return end_; }
  // Pieces that the buffers so far lie in.
  std::uint64_t pieces() const;

 private:
  std::uint64_t left_in_piece() const;

  const PoolPlan& plan_;
  std::uint64_t end_ = 0;
  std::uint64_t placed_ = 0;
};

}  // namespace rdmalloc::regcache
