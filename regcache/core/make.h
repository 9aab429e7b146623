// How a registration enters the cache: plan a range, make room, call the registrar, publish.
#pragma once

#include "regcache/core/domain.h"

namespace rdmalloc::regcache {

// What the caller of a get or a key asked for.
struct Request {
  std::uintptr_t low, high;
  std::uint32_t access;
  bool is_uncounted;  // a key is wanted, and no reference
  // A watched registration may serve it: Watch has applied all events since the call began.
  bool sees_watched = false;
  // The block that is a span of its own, if it is in one.
  std::uintptr_t block_low = 0, block_high = 0;
};

// The slow half of reg_get and reg_key: finds or makes a registration for the request. Counted: one
// reference is taken and *reg set. Uncounted: the registration is sticky and *key filled.
int find_or_make(Domain& domain, const Request& request, bool may_register, Registration** reg,
                 rdmalloc_key* key);

// The key of a heap's registration over the request, which may ask for any right that the heap
// grants. -EACCES when there is none.
int find_heap_key(Domain& domain, const Request& request, rdmalloc_key* key);

// Undoes close_heaps() and withdraw(). Under the lock.
void reopen_heaps(Domain& domain, Registration* reg);

// Registers a region of a heap, whole slices of owned memory, with exactly these rights; sets *reg,
// held once.
int make_heaps(Domain& domain, std::uintptr_t base, std::size_t length, std::uint32_t access,
               Registration** reg);

// A part of a range that one registration of the cache serves.
struct Piece {
  std::uintptr_t low, high;            // of the range
  std::uintptr_t made_low, made_high;  // what a get of that part with local access registers
};
// The first such part of [low, high). 0; -EFAULT: not in one span in use, nor foreign; -EPERM:
// foreign, and not to be cached; -EMSGSIZE: not even its first page may be registered.
int first_piece(const Domain& domain, std::uintptr_t low, std::uintptr_t high, Piece* piece);

}  // namespace rdmalloc::regcache
