// What is reserved, and RLIMIT_AS where a program's call does not tell of it.
#pragma once

namespace rdmalloc {

// Where RLIMIT_AS was lowered past us (prlimit(2) from outside, a raw call), and more than that is
// reserved: gives up the rest, as for a call of the program's own. Whether so: what the kernel
// refused for it may be had now.
bool fit_limit_set_past_us();

}  // namespace rdmalloc
