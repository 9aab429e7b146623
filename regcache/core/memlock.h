// RLIMIT_MEMLOCK: a limit of the process that the kernel holds its domains to, those whose
// registrar says that what it registers counts (RDMALLOC_REGISTRAR_PINS, _LOCKS). Heeded before the
// registrar is asked, so that idle registrations of every such domain make room, a block that does
// not fit with its whole span is registered by its pages, and a caller that asks for too much gets
// the numbers. The kernel has the last word: what it counts is not all told (other processes of the
// user's).
#pragma once

#include <cstddef>

#include "regcache/core/domain.h"

namespace rdmalloc::regcache {

struct MemlockRoom {
  std::uint64_t limit = UINT64_MAX;  // UINT64_MAX: not limited
  std::uint64_t left = UINT64_MAX;
};
// What the limit leaves for one more registration with this domain.
MemlockRoom memlock_room(const Domain& domain);

// Makes room for `length` more bytes, evicting what is idle if need be. False, counted and with one
// warning for each domain, where there is none. Under no lock.
bool make_memlock_room(Domain& domain, std::size_t length);

}  // namespace rdmalloc::regcache
