// Which build of an allocator is compared: a name and a number alone do not say it.
#pragma once

#include <string>

#include "bench/support/allocators.h"

namespace rdmalloc::bench {

// "libjemalloc2 5.3.0-1" for a library out of a Debian package, "git v3.4.3" for one that lies in a
// checkout, "git v3.4.3-dirty" where files of that are changed, "git v3.4.3 or before" where it was
// built before HEAD came there; empty where neither is known.
std::string build_of(const Allocator& allocator);

}  // namespace rdmalloc::bench
