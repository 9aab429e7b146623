// Open files that no checkpoint can take.
#pragma once

#include "regcache/core/gate.h"

namespace rdmalloc::regcache {

// Looks through /proc/self/fd. Where it can't be read nothing is found.
void find_undumpable_files(OpenFiles* found);

}  // namespace rdmalloc::regcache
